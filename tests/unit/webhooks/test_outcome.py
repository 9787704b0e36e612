"""What answers and failures mean."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

import httpcore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.faces.webhooks.guard import UnreachableError
from app.faces.webhooks.outcome import Delivered, Failed, Gone, Outcome, answered, broken

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Delivered()),
        (204, Delivered()),
        (299, Delivered()),
        (410, Gone()),
        (404, Failed("answered 404 Not Found")),
        (500, Failed("answered 500 Internal Server Error")),
        (599, Failed("answered 599")),
        (101, Failed("answered 101 Switching Protocols")),
        (302, Failed("answered 302 Found; redirects are not followed")),
        (304, Failed("answered 304 Not Modified; redirects are not followed")),
    ],
)
def test_only_2xx_settles(status: int, outcome: Outcome) -> None:
    assert answered(status, [], NOW) == outcome


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        (" 120 ", 120.0),
        ("Fri, 20 Nov 2026 12:01:30 GMT", 90.0),
        ("Friday, 20-Nov-26 12:01:30 GMT", 90.0),
        ("Fri Nov 20 12:01:30 2026", 90.0),
        ("Sat, 20 Nov 2027 12:00:00 GMT", 86_400.0),
        ("86401", 86_400.0),
        ("9" * 5000, 86_400.0),
        ("0", None),
        ("-5", None),
        ("1.5", None),
        ("Fri, 20 Nov 2026 11:00:00 GMT", None),
        ("Fri, 99 Nov 2026 11:00:00 GMT", None),
        ("Fri, 20 Nov 99999999999999999999 11:00:00 GMT", None),
        ("soon", None),
        ("²", None),
        ("", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_to_come_and_a_day_at_most(
    status: int, value: str, seconds: float | None
) -> None:
    outcome = answered(status, [(b"Retry-After", value.encode("latin-1"))], NOW)
    assert isinstance(outcome, Failed)
    assert outcome.retry_after_s == seconds


@given(
    st.binary(max_size=80)
    | st.from_regex(r"\A[A-Z][a-z]{2}, \d+ Nov \d+ \d+:\d+:\d+ [+-]?\w+\Z").map(str.encode)
)
def test_no_retry_after_upsets(value: bytes) -> None:
    outcome = answered(503, [(b"retry-after", value)], NOW)
    assert isinstance(outcome, Failed)
    assert outcome.retry_after_s is None or 0 < outcome.retry_after_s <= 86_400


def test_retry_after_counts_only_where_it_asks_to_wait() -> None:
    assert answered(500, [(b"retry-after", b"7")], NOW) == Failed("answered 500 Internal Server Error")
    assert answered(200, [(b"retry-after", b"7")], NOW) == Delivered()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UnreachableError("its host name has no address"), "its host name has no address"),
        (httpcore.ConnectError("Connection refused"), "could not be connected to"),
        (httpcore.ConnectTimeout(), "could not be connected to"),
        (httpcore.RemoteProtocolError("illegal status line: b'SSH-2.0'"), "closed the connection without"),
        (httpcore.ReadError("reset"), "broke the connection off"),
        (ssl.SSLError("alert"), "broke off the TLS handshake"),
    ],
)
def test_what_the_other_side_wrote_is_not_repeated(error: Exception, reason: str) -> None:
    assert broken(error).reason.startswith(reason)
    assert "SSH" not in broken(error).reason


def test_a_reason_has_an_end() -> None:
    assert len(broken(UnreachableError("x" * 1000)).reason) == 300
