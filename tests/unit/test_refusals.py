"""Failed credentials are limited by address, and good ones are not."""

from __future__ import annotations

import ipaddress

import pytest
from starlette.types import Scope

from app.http.bearer import EXPIRED
from app.http.refusals import BURST, MOST, RATE, Network, Refusals
from subscriptions.domain.errors import Code, GaplessError, unauthenticated

A, B = "192.0.2.1", "192.0.2.2"
PROXIES: tuple[Network, ...] = (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("2001:db8::/64"))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def refused(refusals: Refusals, address: str) -> Code:
    return refusals.judge(address, unauthenticated("no")).code


def test_an_address_is_limited_after_a_burst_and_others_are_not() -> None:
    clock = Clock()
    refusals = Refusals(clock=clock)
    assert {refused(refusals, A) for _ in range(BURST)} == {Code.UNAUTHENTICATED}
    assert refused(refusals, A) is Code.RATE_LIMITED
    assert refused(refusals, B) is Code.UNAUTHENTICATED
    clock.now += 2 / RATE
    assert [refused(refusals, A) for _ in range(3)] == [
        Code.UNAUTHENTICATED,
        Code.UNAUTHENTICATED,
        Code.RATE_LIMITED,
    ]
    clock.now += 3600
    assert {refused(refusals, A) for _ in range(BURST)} == {Code.UNAUTHENTICATED}
    assert refused(refusals, A) is Code.RATE_LIMITED


def test_the_answer_says_when_to_come_again_and_other_errors_stay() -> None:
    refusals = Refusals(clock=Clock())
    for _ in range(BURST):
        refused(refusals, A)
    assert refusals.judge(A, unauthenticated("no")).retry_after == 1
    other = GaplessError(Code.FORBIDDEN, "not granted")
    assert refusals.judge(A, other) is other


def test_a_token_that_was_good_is_always_told_that_it_has_expired() -> None:
    refusals = Refusals(clock=Clock())
    for _ in range(2 * BURST):
        assert refusals.judge(A, unauthenticated(EXPIRED)).code is Code.UNAUTHENTICATED
    assert refused(refusals, A) is Code.UNAUTHENTICATED


def test_the_addresses_that_are_remembered_are_bounded() -> None:
    refusals = Refusals(clock=Clock())
    for _ in range(BURST + 1):
        refused(refusals, A)
    for number in range(MOST):
        refused(refusals, f"198.51.{number // 256}.{number % 256}")
    assert repr(refusals) == f"Refusals({MOST} addresses)"
    assert refused(refusals, A) is Code.UNAUTHENTICATED


def test_who_has_no_address_is_not_limited() -> None:
    refusals = Refusals(clock=Clock())
    assert {refused(refusals, "") for _ in range(BURST + 1)} == {Code.UNAUTHENTICATED}


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        (A, [], A),
        (A, [b"198.51.100.7"], A),
        ("10.1.2.3", [], "10.1.2.3"),
        ("10.1.2.3", [b"198.51.100.7"], "198.51.100.7"),
        ("10.1.2.3", [b"203.0.113.9, 198.51.100.7"], "198.51.100.7"),
        ("10.1.2.3", [b"203.0.113.9", b"198.51.100.7, 10.9.9.9"], "198.51.100.7"),
        ("10.1.2.3", [b"nonsense"], "10.1.2.3"),
        ("10.1.2.3", [b"nonsense, 10.9.9.9"], "10.9.9.9"),
        ("10.1.2.3", [b""], "10.1.2.3"),
        ("10.1.2.3", [b"\xff\xfe"], "10.1.2.3"),
        ("2001:db8::5", [b"198.51.100.7"], "198.51.100.7"),
        ("2001:db8:1:2:3:4:5:6", [], "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", [], A),
        ("testclient", [b"198.51.100.7"], "testclient"),
    ],
)
def test_the_address_of_a_client(peer: str, forwarded: list[bytes], client: str) -> None:
    scope: Scope = {"client": (peer, 1234), "headers": [(b"x-forwarded-for", each) for each in forwarded]}
    assert Refusals(PROXIES).address_of(scope) == client


@pytest.mark.parametrize("scope", [{"headers": []}, {"client": None, "headers": []}])
def test_a_socket_in_the_file_system_has_none(scope: Scope) -> None:
    assert Refusals(PROXIES).address_of(scope) == ""
