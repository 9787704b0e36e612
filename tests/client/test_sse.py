"""The event-stream parser against the specification, however the bytes are cut."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest
from gapless import ProtocolError
from gapless._streams.sse import LineSplitter, ServerEvent, SSEParser
from hypothesis import given
from hypothesis import strategies as st

PIECES = st.sampled_from(
    [
        *(b"data", b"id", b"event", b"retry", b":", b" ", b"7", b"x", b"\0", b"ready"),
        *(b"\n", b"\r", b"\r\n", b"\n\n", "é".encode(), b"\xff", b"\xef\xbb\xbf"),
        *(b"data: a\n", b"id: 9\r\n", b"event: gap\r", b": beat\n"),
    ]
)
STREAMS = st.lists(PIECES, max_size=60).map(b"".join)


def by_the_book(data: bytes) -> tuple[list[ServerEvent], int | None]:
    """The specification's algorithm on a whole stream at once, written as plainly as it reads."""
    text = data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    events: list[ServerEvent] = []
    buffer, kind, last_id, retry = "", "", "", None
    for line in re.split(r"\r\n|\r|\n", text)[:-1]:
        if line == "":
            if buffer:
                events.append(ServerEvent(kind or "message", buffer.removesuffix("\n"), last_id))
            buffer, kind = "", ""
            continue
        if line.startswith(":"):
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            kind = value
        elif name == "data":
            buffer += value + "\n"
        elif name == "id" and "\0" not in value:
            last_id = value
        elif name == "retry" and value and all(c in "0123456789" for c in value):
            retry = int(value)
    return events, retry


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(STREAMS, st.lists(st.integers(0, 10_000), max_size=20))
def test_any_cutting_gives_what_the_specification_gives(data: bytes, cuts: list[int]) -> None:
    parser = SSEParser()
    events = [event for chunk in cut(data, cuts) for event in parser.feed(chunk)]
    assert (events, parser.retry_ms) == by_the_book(data)


@given(STREAMS)
def test_byte_by_byte_gives_what_the_specification_gives(data: bytes) -> None:
    parser = SSEParser()
    events = [event for i in range(len(data)) for event in parser.feed(data[i : i + 1])]
    assert (events, parser.retry_ms) == by_the_book(data)


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"retry: 1000\n\n", []),
        (b"id: 5\n\n", []),
        (b"event: ready\n\n", []),
        (b": heartbeat\n\n", []),
        (b"\n\n\n", []),
        (b"data\n\n", [ServerEvent("message", "", "")]),
        (b"data:\n\n", [ServerEvent("message", "", "")]),
        (b"data: a\ndata: b\n\n", [ServerEvent("message", "a\nb", "")]),
        (b"data:  two spaces\n\n", [ServerEvent("message", " two spaces", "")]),
        (b"retry: 1000\nid: 7\ndata: x\n\n", [ServerEvent("message", "x", "7")]),
        (
            b"id: 7\ndata: x\n\ndata: y\n\n",
            [ServerEvent("message", "x", "7"), ServerEvent("message", "y", "7")],
        ),
        (
            b"id: 7\ndata: x\n\nid\ndata: y\n\n",
            [ServerEvent("message", "x", "7"), ServerEvent("message", "y", "")],
        ),
        (b"id: 1\0\ndata: x\n\n", [ServerEvent("message", "x", "")]),
        (b"event: gap\r\ndata: x\r\n\r\n", [ServerEvent("gap", "x", "")]),
        (b"data: a\r\ndata: b\r\n\r\n", [ServerEvent("message", "a\nb", "")]),
        (b"event: gap\rdata: x\r\r", [ServerEvent("gap", "x", "")]),
        (b"\xef\xbb\xbfdata: x\n\n", [ServerEvent("message", "x", "")]),
        (b"data: x\n\n\xef\xbb\xbfdata: y\n\n", [ServerEvent("message", "x", "")]),
        (b"data: cut off in the middle of", []),
        (b"data: cut off before the blank line\n", []),
    ],
)
def test_cases_of_the_specification(stream: bytes, events: list[ServerEvent]) -> None:
    assert SSEParser().feed(stream) == events
    parser = SSEParser()
    assert [event for i in range(len(stream)) for event in parser.feed(stream[i : i + 1])] == events


@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"1.5", b"+1", "٣".encode(), b"9" * 40])
def test_a_retry_that_is_no_number_of_milliseconds_is_ignored(value: bytes) -> None:
    parser = SSEParser()
    parser.feed(b"retry: 250\n\nretry: " + value + b"\n\n")
    assert parser.retry_ms == 250


def test_a_carriage_return_ends_the_line_at_once() -> None:
    # Waiting for a possible line feed would hold every event back until the next one.
    parser = SSEParser()
    assert parser.feed(b"data: x\r\r") == [ServerEvent("message", "x", "")]
    assert parser.feed(b"\ndata: y\r\n\r\n") == [ServerEvent("message", "y", "")]


def test_an_endless_line_is_refused() -> None:
    parser = SSEParser(max_event_bytes=100)
    parser.feed(b"data: " + b"x" * 90)
    with pytest.raises(ProtocolError):
        parser.feed(b"x" * 90)


def test_an_endless_event_is_refused() -> None:
    parser = SSEParser(max_event_bytes=100)
    with pytest.raises(ProtocolError):
        parser.feed(b"data: 0123456789\n" * 20)


def test_the_limit_is_on_one_event_not_on_the_stream() -> None:
    parser = SSEParser(max_event_bytes=100)
    assert len(parser.feed(b"data: 0123456789\n\n" * 200)) == 200


@given(st.lists(st.lists(st.sampled_from([b"\r", b"\n", b"a"]), max_size=6).map(b"".join), max_size=10))
def test_lines_and_rest_are_the_stream_without_its_line_ends(chunks: list[bytes]) -> None:
    splitter = LineSplitter(1000)
    lines = [line for chunk in chunks for line in splitter.feed(chunk)]
    assert [*lines, splitter.rest()] == re.split(rb"\r\n|\r|\n", b"".join(chunks))


def test_no_stream_costs_much_more_than_an_ordinary_one_of_its_length() -> None:
    def cost_s(stream: bytes) -> float:
        costs = []
        for _ in range(3):
            parser = SSEParser()
            began = time.thread_time()
            for at in range(0, len(stream), 4096):
                parser.feed(stream[at : at + 4096])
            costs.append(time.thread_time() - began)
        return min(costs)

    size = 400_000
    ordinary = cost_s(b'id: 1\ndata: {"id":1,"data":"hello"}\n\n' * (size // 37))
    for unit in (
        b"a",
        b"\r",
        b"\n",
        b"\r\n",
        b"data:",
        b"data\n",
        b"data: x\n",
        b"id\n",
        b":\n",
        b"retry:9\n",
    ):
        assert cost_s(unit * (size // len(unit))) < 20 * ordinary, unit
