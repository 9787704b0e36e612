"""A member's decisions: what it takes, what a lost stream means, how long it waits. No network, no time."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from gapless import (
    CredentialExpired,
    Gap,
    GaplessError,
    NotFound,
    ProtocolError,
    Settled,
    Unreachable,
)
from gapless._config import Config
from gapless._effects import AsyncEffects
from gapless._retry import Break, Ended, NoReply, Reply
from gapless._streams.consuming import Consuming, Consumption, Inbox, prefetch_for
from gapless._streams.leases import Lease
from hypothesis import given
from hypothesis import strategies as st

from tests.client.model import deliveries, event, goodbye, in_seconds, problem

HEAD = Reply(200, {"content-type": "text/event-stream; charset=utf-8"})
CUT = NoReply("cut")


def unopened(*, token: Any = None, chance: float = 0.5, **options: Any) -> Consuming:
    config = Config.resolve("http://gapless.test", token, 10.0, None)
    effects = AsyncEffects(clock=lambda: 0.0, chance=lambda: chance)
    return Consuming(Consumption("orders", **options), config, effects)


def make(**options: Any) -> Consuming:
    """One with an open connection."""
    consuming = unopened(**options)
    consuming.opened(HEAD, 0.0)
    return consuming


def drain(consuming: Consuming) -> list[Lease]:
    leases = []
    while (lease := consuming.take()) is not None:
        leases.append(lease)
    return leases


def refusal(status: int, code: str) -> Reply:
    return Reply(status, {}, json.dumps(problem(status, code)).encode())


def test_what_retention_took_is_told_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    lost = event({"channel": "orders.eu", "first_seq": 8, "missed": 7}, "gap")
    told: list[Gap] = []
    consuming = make(on_gap=told.append)
    consuming.feed(lost + deliveries(1))
    assert told == [Gap("orders.eu", 8, 7)]
    assert len(drain(consuming)) == 1

    def fail(gap: Gap) -> None:
        raise RuntimeError(gap)

    for consuming in (make(), make(on_gap=fail)):
        caplog.clear()
        consuming.feed(lost + deliveries(1))
        assert len(drain(consuming)) == 1
        assert len(caplog.records) == 1


def test_the_request_says_what_was_asked_for() -> None:
    request = unopened(prefetch=3, heartbeat=7).request()
    assert (request.method, request.path) == ("GET", "/v1/subscriptions/orders/consume")
    assert request.params == (("prefetch", "3"), ("heartbeat", "7"))
    assert request.headers["Accept"] == "text/event-stream"
    assert request.silence_seconds == 2.5 * 7


@pytest.mark.parametrize(
    "wrong", [{"prefetch": 0}, {"heartbeat": 0}, {"max_hold": 0}, {"max_hold": float("nan")}]
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Consumption("orders", **wrong)


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_name_no_url_can_carry_is_refused(name: str) -> None:
    with pytest.raises(ValueError):
        Consumption(name)


def test_deliveries_come_typed_and_are_held() -> None:
    consuming = make()
    assert consuming.started
    consuming.feed(b"retry: 1000\n" + deliveries(7, attempt=3) + b":\n\n" + event({}, "weather"))
    (lease,) = drain(consuming)
    delivery = lease.delivery
    assert (delivery.subscription, delivery.receipt, delivery.attempt) == ("orders", "r-7-3", 3)
    assert (delivery.message.id, delivery.message.data) == (7, {"n": 7})
    assert delivery.deadline is not None
    assert delivery.deadline.tzinfo is not None
    assert 14 < consuming.leases.next_at() <= 15


@given(st.lists(st.integers(1, 60), max_size=40), st.integers(0, 10))
def test_deliveries_survive_any_cutting_of_their_bytes(sizes: list[int], count: int) -> None:
    consuming = make(prefetch=100)
    whole = deliveries(*range(1, count + 1))
    for size in [*sizes, len(whole)]:
        consuming.feed(whole[:size])
        whole = whole[size:]
    assert [lease.delivery.message.id for lease in drain(consuming)] == list(range(1, count + 1))


def test_with_its_stream_every_lease_is_lost_and_nothing_of_it_is_handed_out_later() -> None:
    consuming = make()
    consuming.feed(deliveries(1, 2, 3))
    first = consuming.take()
    assert first is not None
    half = deliveries(4)[:-1]
    consuming.feed(half)
    assert consuming.lost(CUT, 0.0) == 0.5
    assert first.lost
    assert drain(consuming) == []
    consuming.opened(HEAD, 0.0)
    consuming.feed(deliveries(1, attempt=2))
    (again,) = drain(consuming)
    assert (again.delivery.attempt, again.lost) == (2, False)


@pytest.mark.parametrize("reason", ["shutdown", "slow_consumer", "subscription_deleted"])
def test_after_goodbye_it_is_back_at_once(reason: str) -> None:
    consuming = make()
    consuming.feed(deliveries(1) + goodbye(reason) + deliveries(2))
    (lease,) = drain(consuming)
    assert consuming.leaving
    assert consuming.lost(Ended(), 0.0) == 0.0
    assert lease.lost
    assert not consuming.leaving


def test_a_deleted_subscription_ends_it_when_it_is_not_there_again() -> None:
    consuming = make()
    consuming.feed(goodbye("subscription_deleted"))
    assert consuming.lost(Ended(), 0.0) == 0.0
    with pytest.raises(NotFound) as caught:
        consuming.lost(refusal(404, "subscription_not_found"), 0.0)
    assert caught.value.code == "subscription_not_found"


def test_an_expired_credential_ends_it_unless_it_renews_itself() -> None:
    consuming = make(token="t")
    consuming.feed(goodbye("credential_expired"))
    with pytest.raises(CredentialExpired):
        consuming.lost(Ended(), 0.0)
    renewing = make(token=lambda: "t")
    renewing.feed(goodbye("credential_expired"))
    assert renewing.lost(Ended(), 0.0) == 0.0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422])
def test_a_refusal_is_raised_and_leaves_no_lease(status: int) -> None:
    consuming = make()
    consuming.feed(deliveries(1))
    (lease,) = drain(consuming)
    with pytest.raises(GaplessError):
        consuming.lost(refusal(status, "whatever"), 0.0)
    assert lease.lost


@pytest.mark.parametrize("cause", [CUT, Ended(), *(Reply(s, {}) for s in (429, 500, 502, 503))])
def test_all_else_is_tried_again_for_ever(cause: Break) -> None:
    consuming = unopened()
    waits = [consuming.lost(cause, 0.0) for _ in range(1000)]
    assert waits[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0]
    assert set(waits[6:]) == {15.0}


def test_a_delivery_makes_good_for_failures_before() -> None:
    consuming = unopened()
    for _ in range(5):
        consuming.lost(CUT, 0.0)
    consuming.opened(HEAD, 0.0)
    consuming.feed(deliveries(1))
    assert consuming.lost(CUT, 0.0) == 0.5


def test_it_gives_up_when_told_to() -> None:
    consuming = unopened(give_up_after=60)
    consuming.lost(CUT, 0.0)
    consuming.lost(CUT, 60.0)
    with pytest.raises(Unreachable):
        consuming.lost(CUT, 61.0)


@pytest.mark.parametrize("kind", ["text/html", "application/json", ""])
def test_another_type_of_answer_is_an_error_not_silence(kind: str) -> None:
    with pytest.raises(ProtocolError):
        unopened().opened(Reply(200, {"content-type": kind}), 0.0)


@pytest.mark.parametrize(
    "block",
    [
        b"event: delivery\ndata: {\n\n",
        event([], "delivery"),
        event({"receipt": "r", "attempt": 1, "deadline": "soon", "message": {}}, "delivery"),
        event({"receipt": "r", "attempt": 1, "deadline": in_seconds(1), "message": {}}, "delivery"),
        event({}, "goodbye"),
    ],
)
def test_what_gapless_would_not_send_is_an_error_not_silence(block: bytes) -> None:
    with pytest.raises(ProtocolError):
        make().feed(block)


def test_an_extension_asks_for_all_and_learns_the_services_time() -> None:
    consuming = make()
    consuming.feed(deliveries(1, 2))
    call = consuming.extension(["r-1-1", "r-2-1"])
    assert call.request.path == "/v1/subscriptions/orders/extend"
    assert json.loads(call.request.content or b"") == {"receipts": ["r-1-1", "r-2-1"]}
    results = [{"receipt": r, "status": "extended", "deadline": in_seconds(30)} for r in ("r-1-1", "r-2-1")]
    headers = {"date": "Fri, 20 Nov 2020 12:00:00 GMT"}
    settled = call.decode(Reply(200, headers, json.dumps({"results": results}).encode()))
    assert [one.status for one in settled] == ["extended", "extended"]
    noon = datetime(2020, 11, 20, 12, tzinfo=UTC)
    assert consuming.leases.server_clock.seconds_until(noon) == pytest.approx(0, abs=1)


@pytest.mark.parametrize(("retryable", "lost"), [(True, False), (False, True)])
def test_only_a_lasting_refusal_to_extend_is_a_loss(retryable: bool, lost: bool) -> None:
    consuming = make()
    consuming.feed(deliveries(1))
    (lease,) = drain(consuming)
    consuming.not_extended(["r-1-1"], GaplessError("no", retryable=retryable))
    assert lease.lost is lost


def test_lost_leases_make_room_for_live_ones() -> None:
    consuming = make()
    inbox = Inbox(2)
    for attempt in range(1, 50):
        consuming.feed(deliveries(1, 2, attempt=attempt))
        for lease in drain(consuming):
            inbox.put(lease)
        if attempt < 49:
            consuming.lost(CUT, 0.0)
            consuming.opened(HEAD, 0.0)
    assert len(inbox) <= 4
    taken = [inbox.take(), inbox.take(), inbox.take()]
    assert [lease and (lease.delivery.attempt, lease.given) for lease in taken] == [
        (49, True),
        (49, True),
        None,
    ]


def test_reading_ahead_is_bounded() -> None:
    assert [prefetch_for(n) for n in (1, 8, 10_000)] == [2, 16, 1000]
    with pytest.raises(ValueError):
        prefetch_for(0)


def test_an_answer_about_other_receipts_is_no_answer() -> None:
    call = make().extension(["r-1-1"])
    for results in ([], [Settled("r-2-1", "extended")]):
        body = {"results": [{"receipt": one.receipt, "status": one.status} for one in results]}
        with pytest.raises(ProtocolError):
            call.decode(Reply(200, {}, json.dumps(body).encode()))
