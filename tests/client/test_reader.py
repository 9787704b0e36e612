"""A subscription's decisions: what it hands out, where it resumes, how long it waits. No network, no time."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from gapless import (
    CredentialExpired,
    Ephemeral,
    Gap,
    GaplessError,
    HistoryLost,
    Last,
    Message,
    ProtocolError,
    Unauthenticated,
    Unavailable,
    Unreachable,
)
from gapless._retry import Break, Ended, NoReply, Reply
from gapless._streams.interest import Interest
from gapless._streams.reader import Reader
from gapless._streams.reading import Item, OnGap
from hypothesis import given
from hypothesis import strategies as st

from tests.client.model import blocks, event, gap, goodbye, message, problem, ready

HEAD = Reply(200, {"content-type": "text/event-stream; charset=utf-8"})
CUT = NoReply("cut")


def make(*channels: str, chance: float = 0.5, now: float = 0.0, **options: Any) -> Reader:
    """A reader with an open connection."""
    reader = unopened(*channels, chance=chance, **options)
    reader.opened(HEAD, now)
    return reader


def unopened(
    *channels: str,
    chance: float = 0.5,
    on_gap: OnGap = "raise",
    ephemeral: bool = False,
    give_up_after: float | None = None,
    renews_token: bool = False,
    **interest: Any,
) -> Reader:
    return Reader(
        Interest(channels or ("chat.lobby",), **interest),
        on_gap=on_gap,
        ephemeral=ephemeral,
        give_up_after=give_up_after,
        renews_token=renews_token,
        chance=lambda: chance,
    )


def drain(reader: Reader) -> list[Item]:
    items: list[Item] = []
    while (item := reader.take()) is not None:
        items.append(item)
    return items


def ids(items: list[Item]) -> list[int]:
    return [item.id for item in items if isinstance(item, Message)]


def refusal(status: int, code: str) -> Reply:
    return Reply(status, {}, json.dumps(problem(status, code)).encode())


def test_messages_come_typed() -> None:
    reader = make()
    reader.feed(blocks([message(7, key="k", headers={"a": "b"}, sender="ann", seq=3)])[0])
    assert drain(reader) == [
        Message(
            id=7,
            channel="chat.lobby",
            seq=3,
            type="message",
            key="k",
            data={"n": 7},
            headers={"a": "b"},
            sender="ann",
            created_at=datetime(2026, 11, 20, 12, 0, 0, 123456, UTC),
            expires_at=None,
        )
    ]


def test_members_left_out_are_null_and_bytes_are_bytes() -> None:
    raw = message(7, data_base64="AP8=", expires_at="2026-11-20T13:00:00Z", later_member=1)
    del raw["data"], raw["type"]
    reader = make()
    reader.feed(event(raw, event_id=7))
    (read,) = drain(reader)
    assert isinstance(read, Message)
    assert (read.data, read.type, read.key, read.headers, read.sender) == (
        b"\0\xff",
        "message",
        None,
        {},
        None,
    )
    assert read.expires_at == datetime(2026, 11, 20, 13, tzinfo=UTC)


@given(
    st.sets(st.integers(1, 200), max_size=25).map(sorted),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 5), st.integers(1, 97)), max_size=12),
    st.booleans(),
)
def test_each_message_once_and_in_order_however_often_the_stream_breaks(
    log: list[int], breaks: list[tuple[int, int, int]], from_start: bool
) -> None:
    """Each break: after how many bytes, how far back the server then starts, how the bytes are cut."""
    reader = unopened(start=0 if from_start else "earliest")
    seen: list[int] = []
    endless = (10**9, 0, 4096)
    for cut_after, overlap, size in [*breaks, endless]:
        cursor = int(reader.request().headers.get("Last-Event-ID", 0))
        assert cursor == max(seen, default=0)
        reader.opened(HEAD, 0.0)
        # A server may say again what it said before; it may not leave anything out.
        back = sorted(one for one in log if one <= cursor)[-overlap:] if overlap else []
        sent = b"".join(blocks([message(one) for one in log if one > cursor or one in back]))
        sent = (b"retry: 1000\n" + sent)[:cut_after] if sent else b": quiet\n"[:cut_after]
        for start in range(0, len(sent), size):
            reader.feed(sent[start : start + size])
            seen += ids(drain(reader))
            assert reader.cursor == max(seen, default=reader.cursor)
        assert reader.lost(CUT, 0.0) is not None
    assert seen == log


@given(st.permutations(list(range(1, 8))), st.integers(0, 8))
def test_what_comes_twice_or_late_is_dropped(order: list[int], after: int) -> None:
    reader = make(start=after)
    reader.feed(ready(after) + b"".join(blocks([message(one) for one in order])))
    seen = ids(drain(reader))
    assert seen == sorted(set(seen))
    assert all(one > after for one in seen)


def test_half_an_event_is_forgotten_with_its_connection() -> None:
    reader = make()
    whole = blocks([message(1), message(2)])
    reader.feed(whole[0] + whole[1][:-1])
    assert ids(drain(reader)) == [1]
    reader.lost(CUT, 0.0)
    reader.opened(HEAD, 0.0)
    reader.feed(whole[1])
    assert ids(drain(reader)) == [2]


def test_the_cursor_stands_behind_what_was_handed_out_not_what_has_arrived() -> None:
    reader = make()
    reader.feed(b"".join(blocks([message(3), message(5)])) + ready(9))
    assert reader.cursor is None
    reader.take()
    assert reader.cursor == 3
    reader.take()
    assert reader.cursor == 5
    assert reader.take() is None
    assert reader.cursor == 9


def test_ready_settles_where_a_reader_of_new_messages_stands() -> None:
    reader = make()
    assert not reader.started
    assert "Last-Event-ID" not in reader.request().headers
    reader.feed(ready(41))
    assert reader.started
    assert reader.cursor == 41
    reader.lost(CUT, 0.0)
    assert reader.request().headers["Last-Event-ID"] == "41"
    assert dict(reader.request().params) == {"channel": "chat.lobby", "heartbeat": "15"}


def test_a_cursor_that_was_brought_moves_back_as_the_server_says() -> None:
    """It may come from other channels: what is committed below it later was never read."""
    reader = make(start=4)
    reader.feed(ready(2))
    assert drain(reader) == []
    assert reader.cursor == 2
    reader.feed(blocks([message(3)])[0])
    assert ids(drain(reader)) == [3]
    other = make(start=4)
    other.feed(b"".join(blocks([message(one) for one in (3, 5, 4)])))
    assert (ids(drain(other)), other.cursor) == ([3, 5], 5)


def test_an_older_ready_does_not_pull_the_cursor_back() -> None:
    reader = make(start=40)
    reader.feed(blocks([message(50)])[0])
    assert ids(drain(reader)) == [50]
    reader.feed(ready(41))
    assert reader.cursor == 50


def test_the_request_says_what_was_asked_for() -> None:
    reader = unopened("a.*", "b.>", start=Last(10), types=["x", "y"], keys=("k",), heartbeat=7.5)
    request = reader.request()
    assert (request.method, request.path) == ("GET", "/v1/subscribe")
    assert request.params == (
        ("channel", "a.*"), ("channel", "b.>"), ("last", "10"), ("type", "x"), ("type", "y"), ("key", "k"),
        ("heartbeat", "7.5"),
    )  # fmt: skip
    assert request.headers["Accept"] == "text/event-stream"
    assert request.silence_seconds == 2.5 * 7.5


@pytest.mark.parametrize(
    ("start", "parameter"),
    [
        (Last(3), ("last", "3")),
        ("10m", ("since", "10m")),
        (datetime(2026, 11, 20, 12, tzinfo=UTC), ("since", "2026-11-20T12:00:00Z")),
        (
            datetime(2026, 11, 20, 14, tzinfo=timezone(timedelta(hours=2))),
            ("since", "2026-11-20T12:00:00Z"),
        ),
        ("earliest", ("from", "earliest")),
    ],
)
def test_a_start_is_asked_for_until_there_is_a_cursor(start: Any, parameter: tuple[str, str]) -> None:
    reader = make(start=start)
    assert parameter in reader.request().params
    reader.lost(CUT, 0.0)
    assert parameter in reader.request().params
    reader.opened(HEAD, 0.0)
    reader.feed(blocks([message(8)])[0])
    drain(reader)
    reader.lost(CUT, 0.0)
    assert parameter not in reader.request().params
    assert reader.request().headers["Last-Event-ID"] == "8"


@pytest.mark.parametrize("after", [0, 17])
def test_a_stored_cursor_is_a_resume(after: int) -> None:
    reader = unopened(start=after)
    assert reader.request().headers["Last-Event-ID"] == str(after)
    assert reader.cursor == after
    assert not reader.started


@pytest.mark.parametrize(
    "wrong",
    [
        {"heartbeat": 0},
        {"heartbeat": float("nan")},
        {"start": datetime(2026, 11, 20)},
    ],
)
def test_an_interest_without_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Interest(("a",), **wrong)


def test_a_subscription_to_nothing_is_refused() -> None:
    with pytest.raises(ValueError):
        Interest(())


def test_a_gap_is_raised_in_its_place_and_reading_goes_on() -> None:
    reader = make(start=0)
    first, second = blocks([message(4), message(90)])
    reader.feed(first + gap("chat.lobby", 90, 85) + second)
    assert ids([item for item in [reader.take()] if item]) == [4]
    with pytest.raises(HistoryLost) as caught:
        reader.take()
    assert caught.value.gap == Gap("chat.lobby", 90, 85)
    assert reader.cursor == 4
    assert ids(drain(reader)) == [90]


def test_a_gap_is_yielded_to_those_who_ask() -> None:
    reader = make(on_gap="yield")
    reader.feed(gap("chat.lobby", 90, 85) + blocks([message(90)])[0])
    assert [type(item) for item in drain(reader)] == [Gap, Message]


def test_a_gap_is_told_to_a_function() -> None:
    told: list[Gap] = []
    reader = make(on_gap=told.append)
    reader.feed(gap("chat.lobby", 90, 85) + blocks([message(90)])[0])
    assert ids(drain(reader)) == [90]
    assert told == [Gap("chat.lobby", 90, 85)]


def test_a_gap_says_in_words_what_is_gone_and_why() -> None:
    removed = str(Gap("chat.lobby", 90, 85))
    assert removed.startswith("85 messages of chat.lobby were removed by retention")
    assert "goes on at seq 90" in removed
    for channel in ("chat.lobby", ""):
        restored = str(Gap(channel, 0, 0, (7, 9)))
        assert restored.startswith(f"the history of {channel} has" if channel else "the history has")
        assert "with ids from 7 to 9" in restored
        assert "retention" not in restored
    assert str(HistoryLost.of(Gap("", 0, 0, (7, 9)))) == f"gap: {restored}"


def test_a_gap_is_told_once_however_often_the_stream_breaks_there() -> None:
    told: list[Gap] = []
    reader = make(on_gap=told.append)
    for first_seq in (90, 90, 95, 90):
        reader.feed(gap("chat.lobby", first_seq, 85) + gap("other", 3, 2))
        drain(reader)
        reader.lost(CUT, 0.0)
        reader.opened(HEAD, 0.0)
    assert [(one.channel, one.first_seq) for one in told] == [
        ("chat.lobby", 90),
        ("other", 3),
        ("chat.lobby", 95),
    ]


EPHEMERAL = event(
    {"channel": "chat.lobby", "type": "typing", "data": {"on": True}, "sender": "ann"}, "ephemeral"
)


def test_ephemeral_messages_come_only_when_asked_for() -> None:
    for asked in (False, True):
        reader = make(ephemeral=asked)
        reader.feed(EPHEMERAL)
        expected: list[Item] = [Ephemeral("chat.lobby", "typing", None, {"on": True}, {}, "ann")]
        assert drain(reader) == (expected if asked else [])
        assert reader.cursor is None


def test_events_of_later_versions_are_passed_over() -> None:
    reader = make()
    reader.feed(event({"x": 1}, "presence") + event([], "weather") + b": heartbeat\n\n" + b"retry: 5\n\n")
    assert drain(reader) == []


@pytest.mark.parametrize(
    "block",
    [
        b"data: not json\n\n",
        event([1]),
        event({"id": 1}),
        event(message(1, created_at="yesterday")),
        event(message(1, data_base64="!")),
        event({"cursor": "x"}, "ready"),
        event(7, "ready"),
        event({}, "goodbye"),
        event({"channel": "a"}, "gap"),
    ],
)
def test_what_gapless_would_not_send_is_an_error_not_silence(block: bytes) -> None:
    with pytest.raises(ProtocolError):
        make().feed(block)


@pytest.mark.parametrize("kind", ["text/html", "application/json", ""])
def test_another_type_of_answer_is_an_error_not_silence(kind: str) -> None:
    with pytest.raises(ProtocolError):
        unopened().opened(Reply(200, {"content-type": kind}), 0.0)


@pytest.mark.parametrize("reason", ["shutdown", "slow_consumer"])
def test_after_goodbye_the_reader_is_back_at_once(reason: str) -> None:
    reader = make()
    reader.feed(blocks([message(1)])[0] + goodbye(reason) + blocks([message(2)])[0])
    assert ids(drain(reader)) == [1]
    assert reader.leaving
    assert reader.lost(Ended(), 1.0) == 0.0
    assert not reader.leaving
    assert reader.request().headers["Last-Event-ID"] == "1"


def test_a_server_that_only_says_goodbye_is_not_hammered() -> None:
    reader = make()
    waits = []
    for _ in range(4):
        reader.feed(ready(3) + goodbye("shutdown"))
        waits.append(reader.lost(Ended(), 0.0))
        reader.opened(HEAD, 0.0)
    assert waits == [0.0, 1.0, 2.0, 4.0]


def test_an_expired_credential_ends_the_subscription() -> None:
    reader = make(start=4)
    reader.feed(goodbye("credential_expired"))
    with pytest.raises(CredentialExpired) as caught:
        reader.lost(Ended(), 0.0)
    assert isinstance(caught.value, Unauthenticated)
    assert reader.cursor == 4


def test_a_credential_that_renews_itself_only_costs_a_reconnect() -> None:
    reader = make(renews_token=True)
    reader.feed(goodbye("credential_expired"))
    assert reader.lost(Ended(), 0.0) == 0.0
    # The next token may be the old one still, by another clock. A second one is no chance.
    assert reader.lost(refusal(401, "unauthenticated"), 0.0) is not None
    with pytest.raises(Unauthenticated):
        reader.lost(refusal(401, "unauthenticated"), 0.0)


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, "invalid_request"), (401, "unauthenticated"), (403, "forbidden"), (422, "invalid_request")],
)
def test_a_refusal_is_raised_at_once(status: int, code: str) -> None:
    with pytest.raises(GaplessError) as caught:
        unopened().lost(refusal(status, code), 0.0)
    assert caught.value.code == code


@pytest.mark.parametrize(
    "cause", [CUT, NoReply("refused", sent=False), *(Reply(s, {}) for s in (429, 500, 502, 503))]
)
def test_all_else_is_tried_again_for_ever(cause: Break) -> None:
    reader = unopened()
    waits = [reader.lost(cause, 0.0) for _ in range(1000)]
    assert waits[:6] == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0]
    assert set(waits[6:]) == {15.0}


def test_retry_after_is_the_least_wait() -> None:
    assert unopened().lost(Reply(503, {"retry-after": "9"}), 0.0) == 9.5


def test_the_server_sets_the_first_wait() -> None:
    reader = make()
    reader.feed(b"retry: 4000\n\n")
    assert reader.lost(CUT, 0.0) == 2.0


def test_a_server_that_asks_for_no_wait_is_not_hammered() -> None:
    reader = make()
    reader.feed(b"retry: 0\n\n")
    assert reader.lost(CUT, 0.0) == 0.05


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=40))
def test_waits_are_jittered_between_nothing_and_the_cap(chances: list[float]) -> None:
    for count, chance in enumerate(chances, 1):
        reader = unopened(chance=chance)
        waits = [reader.lost(CUT, 0.0) for _ in range(count)]
        assert waits[-1] == chance * min(30.0, 2.0 ** (count - 1))


@pytest.mark.parametrize("worth", ["message", "time"])
def test_failures_count_from_anew_after_a_connection_that_was_worth_something(worth: str) -> None:
    reader = unopened()
    for _ in range(5):
        reader.lost(CUT, 0.0)
    reader.opened(HEAD, 10.0)
    if worth == "message":
        reader.feed(blocks([message(1)])[0])
        drain(reader)
        assert reader.lost(CUT, 10.0) == 0.5
    else:
        assert reader.lost(CUT, 15.0) == 0.5


def test_giving_up_is_measured_from_the_first_failure_in_a_row() -> None:
    reader = make(give_up_after=60)
    reader.feed(blocks([message(1)])[0])
    drain(reader)
    for now in (100.0, 130.0, 160.0):
        reader.lost(refusal(503, "unavailable"), now)
    with pytest.raises(Unavailable):
        reader.lost(refusal(503, "unavailable"), 161.0)


def test_a_server_that_keeps_ending_the_stream_is_given_up_too() -> None:
    reader = make(give_up_after=1)
    reader.lost(Ended(), 0.0)
    reader.opened(HEAD, 2.0)
    with pytest.raises(Unreachable):
        reader.lost(Ended(), 2.0)


def test_giving_up_is_not_about_failures_long_made_good() -> None:
    reader = make(give_up_after=60)
    reader.lost(CUT, 0.0)
    reader.opened(HEAD, 10.0)
    reader.feed(blocks([message(1)])[0])
    drain(reader)
    reader.lost(CUT, 1000.0)
    reader.lost(CUT, 1060.0)
    with pytest.raises(Unreachable):
        reader.lost(CUT, 1061.0)
