"""The parsers must say the same however the network cuts the bytes."""

from __future__ import annotations

import asyncio
import random

import pytest

from load.relay import listening
from load.sse import MARK, Counter, Event, Events, follow
from load.wire import Answers, Dechunker, ProtocolError, Target, field
from tests.patience import in_time

TEXT = (
    b': hello\n\nretry: 1000\n\nid: 1\ndata: {"a":1}\n\nretry: 5\nid: 2\ndata: x\ndata: y\n\n'
    b'event: ready\ndata: {"cursor":2}\n\nid:3\ndata:z\n\n: beat\n\nid: 4\nevent: gap\ndata: g\n\nid: 5\n'
)
SAID: list[Event] = [
    (b"1", b'{"a":1}', b""),
    (b"2", b"x\ny", b""),
    (None, b'{"cursor":2}', b"ready"),
    (b"3", b"z", b""),
    (b"4", b"g", b"gap"),
]


def _cut(data: bytes, chance: random.Random) -> list[bytes]:
    cuts = sorted(chance.sample(range(1, len(data)), chance.randint(0, min(30, len(data) - 2))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _chunked(parts: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("seed", range(30))
def test_events_survive_every_cut(seed: int, ending: bytes) -> None:
    chance = random.Random(seed)
    events = Events()
    got = [e for part in _cut(TEXT.replace(b"\n", ending), chance) for e in events.feed(part)]
    assert got == SAID


@pytest.mark.parametrize("seed", range(30))
def test_plain_messages_survive_every_cut(seed: int) -> None:
    chance = random.Random(seed)
    events = Events()
    text = b"".join(b'id: %d\ndata: {"text":"id: 7 event: x"}\n\n' % n for n in range(20))
    got = [e for part in _cut(text, chance) for e in events.feed(part)]
    assert got == [(b"%d" % n, b'{"text":"id: 7 event: x"}', b"") for n in range(20)]


def test_a_named_event_between_messages_keeps_its_name() -> None:
    text = b"id: 1\ndata: a\n\nevent: gap\nid: 2\ndata: b\n\nid: 3\ndata: c\n\n"
    assert Events().feed(text) == [(b"1", b"a", b""), (b"2", b"b", b"gap"), (b"3", b"c", b"")]


@pytest.mark.parametrize("seed", range(50))
def test_chunks_come_off_however_they_are_cut(seed: int) -> None:
    chance = random.Random(seed)
    coding = Dechunker()
    wire = _chunked(_cut(TEXT, chance))
    assert b"".join(coding.feed(part) for part in _cut(wire, chance)) == TEXT
    assert coding.done


def test_a_broken_chunk_size_is_refused() -> None:
    with pytest.raises(ProtocolError):
        Dechunker().feed(b"zz\r\n")


@pytest.mark.parametrize("seed", range(50))
def test_the_counter_counts_what_the_parser_finds(seed: int) -> None:
    chance = random.Random(seed)
    text = b"".join(b'id: %d\ndata: {"id":%d}\n\n' % (n, n) for n in range(40))
    wire = b"HTTP/1.1 200 OK\r\n\r\n" + _chunked([text[i : i + 24] for i in range(0, len(text), 24)])
    whole = b"HTTP/1.1 200 OK\r\n\r\n" + _chunked([text])
    counter = Counter(b"", b"\r\n\r\n", lambda head: None)
    for part in _cut(whole, chance):
        counter._buffer[: len(part)] = part
        counter.buffer_updated(len(part))
    assert counter.count == 40
    assert wire.count(MARK) <= 40


def test_the_counter_sees_a_mark_that_comes_a_byte_at_a_time() -> None:
    live: list[bytes] = []
    counter = Counter(b"", b"ready", live.append)
    for byte in b'\n\nid: 1\ndata: {"id":1}\n\nid: 1\nevent: ready\ndata: {}\n\nid: 2\ndata: {"id":2}\n\n':
        counter._buffer[:1] = bytes([byte])
        counter.buffer_updated(1)
    assert counter.count == 2
    assert len(live) == 1


@pytest.mark.parametrize("seed", range(30))
def test_answers_are_whole_however_they_are_cut(seed: int) -> None:
    chance = random.Random(seed)
    answers = Answers()
    plain = b"HTTP/1.1 201 Created\r\nContent-Length: 5\r\nX: y\r\n\r\nhello"
    for wire, status, body in [
        (plain, 201, b"hello"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + _chunked([b"ab", b"cd"]), 200, b"abcd"),
        (b"HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", 204, b""),
    ]:
        found = [a for part in _cut(wire, chance) if (a := answers.feed(part)) is not None]
        assert [(a.status, a.body) for a in found] == [(status, body)]


def test_a_request_says_what_it_carries() -> None:
    sent = Target("127.0.0.1", 80).request("POST", "/x", b"{}", {"Idempotency-Key": "k"})
    assert sent.startswith(b"POST /x HTTP/1.1\r\nHost: 127.0.0.1:80\r\n")
    assert field(sent, b"content-length") == b"2"
    assert field(sent, b"content-type") == b"application/json"
    assert field(sent, b"absent") is None


async def test_an_answer_that_is_over_ends_the_stream_though_the_connection_stays() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + _chunked([TEXT]))
        await reader.read()  # until the other side closes

    got: list[Event] = []
    async with listening(answer) as port:
        target = Target("127.0.0.1", port)
        assert await in_time(follow(target, "/", got.extend, {}))
    assert got == SAID


async def test_a_stream_that_is_refused_ends() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
        await reader.read()

    seen: list[int] = []
    async with listening(answer) as port:
        target = Target("127.0.0.1", port)
        assert await in_time(follow(target, "/", lambda events: None, {}, seen.append))
    assert seen == [503]
