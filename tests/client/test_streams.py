"""Subscriptions over real sockets: cut at any byte, silent, reset, refused, closed, cancelled."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from gapless import AsyncClient, Client, CredentialExpired, Forbidden, Last, Message, ProtocolError

from tests.client.faces import Face
from tests.client.model import blocks, goodbye, message, problem, ready
from tests.client.raw_server import Exchange, RawServer, Script, answer, chunks, replies, stream_head
from tests.patience import PATIENCE_S, cancel, in_time

LOG = [3, 5, 9]


def events(after: int) -> list[bytes]:
    """What an honest service sends a reader that stands at `after`, block by block."""
    return [b"retry: 1000\n", *blocks([message(one) for one in LOG if one > after]), ready(LOG[-1])]


def cursor_of(exchange: Exchange) -> int:
    return int(exchange.seen.headers.get("last-event-id", 0))


def whole_stream(exchange: Exchange, chunked: bool) -> bytes:
    parts = events(cursor_of(exchange))
    return stream_head(chunked=chunked) + (chunks(*parts, end=False) if chunked else b"".join(parts))


def cut_at(length: int, *, chunked: bool = True, reset: bool = False) -> Script:
    """Sends the first `length` bytes of an honest answer, then nothing more."""

    def script(exchange: Exchange) -> None:
        exchange.send(whole_stream(exchange, chunked)[:length])
        if reset:
            exchange.reset()

    return script


def serve(exchange: Exchange) -> None:
    """An honest answer that stays open."""
    exchange.send(whole_stream(exchange, chunked=True))
    exchange.hold()


def ids(items: list[Any]) -> list[int]:
    return [item.id for item in items if isinstance(item, Message)]


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("reset", [False, True])
def test_a_cut_at_any_byte_neither_loses_nor_doubles(
    face: Face, raw_server: RawServer, chunked: bool, reset: bool
) -> None:
    length = len(stream_head(chunked=chunked)) + sum(map(len, events(0)))
    face.connect(raw_server.url)
    # Both ways together visit every byte of the answer, its head and its framing.
    for cut in range(int(reset), length, 2):
        raw_server.seen.clear()
        raw_server.scripts = [cut_at(cut, chunked=chunked, reset=reset), serve]
        stream = face.open("subscribe", "chat.lobby", start="earliest")
        assert ids(face.take(stream, 3)) == LOG
        assert stream.cursor == 9
        face.close(stream)


def test_many_cuts_in_a_row_neither_lose_nor_double(face: Face, raw_server: RawServer) -> None:
    whole = len(stream_head()) + sum(map(len, events(0)))
    raw_server.scripts = [*(cut_at(cut) for cut in range(0, whole, 40)), serve]
    face.connect(raw_server.url)
    assert ids(face.take(face.open("subscribe", "chat.lobby", start=0), 3)) == LOG
    assert all(0 <= wait <= 30 for wait in face.time.waits)


def test_silence_is_a_dead_connection(face: Face, raw_server: RawServer) -> None:
    def fall_silent(exchange: Exchange) -> None:
        """Gives the first message to those who lack it, and nothing more."""
        if cursor_of(exchange) >= 3:
            serve(exchange)
            return
        exchange.send(stream_head() + chunks(events(0)[1], end=False))
        exchange.hold()

    raw_server.scripts = [fall_silent]
    face.connect(raw_server.url)
    # Half a second of silence. Where the machine is slower, an honest connection is taken for dead, too.
    stream = face.open("subscribe", "chat.lobby", start=0, heartbeat=0.2)
    assert ids(face.take(stream, 3)) == LOG
    assert list(dict.fromkeys(seen.headers["last-event-id"] for seen in raw_server.seen))[:2] == ["0", "3"]


@pytest.mark.realtime("the beats of the server must come within the silence that the client bears")
def test_heartbeats_keep_a_quiet_connection(face: Face, raw_server: RawServer) -> None:
    beats = threading.Event()

    def beat(exchange: Exchange) -> None:
        exchange.send(stream_head())
        for _ in range(24):
            exchange.send(chunks(b":\n", end=False))
            beats.wait(0.1)
        exchange.send(chunks(*events(0), end=False))
        exchange.hold()

    raw_server.scripts = [beat]
    face.connect(raw_server.url)
    assert ids(face.take(face.open("subscribe", "a", start=0, heartbeat=0.8), 3)) == LOG
    assert len(raw_server.seen) == 1


@pytest.mark.timeout(PATIENCE_S)  # The silent connection ends after two and a half heartbeats.
def test_goodbye_is_answered_with_a_new_connection_at_once(face: Face, raw_server: RawServer) -> None:
    def leave(exchange: Exchange) -> None:
        exchange.send(stream_head() + chunks(events(0)[1], goodbye("shutdown"), end=False))
        exchange.hold()

    raw_server.scripts = [leave, serve]
    face.connect(raw_server.url)
    stream = face.open("subscribe", "chat.lobby", start=0, heartbeat=PATIENCE_S)
    assert ids(face.take(stream, 3)) == LOG
    assert face.time.waits == []


def test_an_expired_credential_is_raised_and_the_cursor_kept(face: Face, raw_server: RawServer) -> None:
    def expire(exchange: Exchange) -> None:
        exchange.send(stream_head() + chunks(events(0)[1], goodbye("credential_expired"), end=False))
        exchange.hold()

    raw_server.scripts = [expire]
    face.connect(raw_server.url, token="t")
    stream = face.open("subscribe", "chat.lobby", start=0)
    assert ids(face.take(stream, 1)) == [3]
    with pytest.raises(CredentialExpired):
        face.take(stream, 1)
    assert stream.cursor == 3
    assert face.take(stream) == []


def test_refusals_are_raised_by_the_first_read_and_by_entering(face: Face, raw_server: RawServer) -> None:
    raw_server.scripts = replies(answer(403, problem(403, "forbidden")))
    face.connect(raw_server.url)
    with pytest.raises(Forbidden):
        face.take(face.open("subscribe", "a"), 1)
    with pytest.raises(Forbidden):
        face.enter(face.open("subscribe", "a"))
    assert face.time.waits == []


def test_a_login_page_is_not_taken_for_silence(face: Face, raw_server: RawServer) -> None:
    raw_server.scripts = replies(answer(200, {"hello": "world"}))
    face.connect(raw_server.url)
    with pytest.raises(ProtocolError):
        face.enter(face.open("subscribe", "a"))


def test_a_service_that_is_not_there_yet_is_waited_for(face: Face, raw_server: RawServer) -> None:
    refusals = replies(b"", answer(503, problem(503, "unavailable"), Retry_After="4"), answer(502, "x"))
    raw_server.scripts = [*refusals, serve]
    face.connect(raw_server.url)
    assert ids(face.take(face.open("subscribe", "chat.lobby", start=0), 3)) == LOG
    assert face.time.waits == pytest.approx([0.5, 5.0, 2.0])


def test_entering_returns_when_nothing_can_be_missed_any_more(face: Face, raw_server: RawServer) -> None:
    raw_server.scripts = [lambda e: e.send(stream_head()), serve]
    face.connect(raw_server.url)
    stream = face.open("subscribe", "chat.lobby", start=9)
    face.enter(stream)
    assert stream.cursor == 9
    assert "open" in repr(stream)
    newest = face.open("subscribe", "chat.lobby", start=Last(1))
    face.enter(newest)
    assert ids(face.take(newest, 1)) == [3]


def test_a_closed_stream_gives_nothing_more(face: Face, raw_server: RawServer) -> None:
    raw_server.scripts = [serve]
    face.connect(raw_server.url)
    stream = face.open("subscribe", "chat.lobby", start=0)
    assert ids(face.take(stream, 1)) == [3]
    face.close(stream)
    face.close(stream)
    assert face.take(stream) == []
    assert stream.cursor == 3
    assert "closed" in repr(stream)


def silent(exchange: Exchange) -> None:
    exchange.send(stream_head() + chunks(ready(9), end=False))
    exchange.hold()


def test_a_thread_that_waits_is_released_by_closing_the_stream(raw_server: RawServer) -> None:
    raw_server.scripts = [silent]
    with Client(raw_server.url) as client:
        stream = client.subscribe("a").__enter__()
        finished: list[list[Message]] = []
        reader = threading.Thread(target=lambda: finished.append(list(stream)))
        reader.start()
        while not stream._stepping.locked():
            assert reader.is_alive()
        stream.close()
        reader.join(PATIENCE_S)
    assert finished == [[]]


def test_a_thread_between_connections_is_released_by_closing_the_stream(raw_server: RawServer) -> None:
    raw_server.scripts = replies(answer(503, None, Retry_After="3600"))
    with Client(raw_server.url) as client:
        stream = client.subscribe("a")
        finished: list[list[Message]] = []
        reader = threading.Thread(target=lambda: finished.append(list(stream)))
        reader.start()
        raw_server.wait_for(requests=1)
        stream.close()
        reader.join(PATIENCE_S)
    assert finished == [[]]


@pytest.mark.parametrize("turns", range(0, 9, 2))
async def test_a_task_that_waits_is_released_by_closing_the_stream(raw_server: RawServer, turns: int) -> None:
    raw_server.scripts = [silent]
    async with AsyncClient(raw_server.url) as client:
        stream = client.subscribe("a")
        await stream.__aenter__()
        reader = asyncio.ensure_future(collect(stream))
        for _ in range(turns):
            await asyncio.sleep(0)
        await stream.aclose()
        assert await in_time(reader) == []


async def test_a_task_between_connections_is_released_by_closing_the_stream(raw_server: RawServer) -> None:
    raw_server.scripts = replies(answer(503, None, Retry_After="3600"))
    async with AsyncClient(raw_server.url) as client:
        stream = client.subscribe("a")
        reader = asyncio.ensure_future(collect(stream))
        await asyncio.to_thread(raw_server.wait_for, 1)
        await stream.aclose()
        assert await in_time(reader) == []


class SlowToAnswer:
    """Answers only when told to, and tells when the client has hung up."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.gone = threading.Event()

    def __call__(self, exchange: Exchange) -> None:
        assert self.go.wait(PATIENCE_S)
        serve(exchange)
        self.gone.set()


async def test_a_stream_closed_while_a_task_opens_it_leaves_no_connection(raw_server: RawServer) -> None:
    slow = SlowToAnswer()
    raw_server.scripts = [slow]
    async with AsyncClient(raw_server.url) as client:
        stream = client.subscribe("a")
        reader = asyncio.ensure_future(collect(stream))
        await asyncio.to_thread(raw_server.wait_for, 1)
        await stream.aclose()
        slow.go.set()
        assert await in_time(reader) == []
        assert await asyncio.to_thread(slow.gone.wait, PATIENCE_S)


def test_a_stream_closed_while_a_thread_opens_it_leaves_no_connection(raw_server: RawServer) -> None:
    slow = SlowToAnswer()
    raw_server.scripts = [slow]
    with Client(raw_server.url) as client:
        stream = client.subscribe("a")
        reader = threading.Thread(target=lambda: list(stream))
        reader.start()
        raw_server.wait_for(requests=1)
        stream.close()
        slow.go.set()
        reader.join(PATIENCE_S)
        assert slow.gone.wait(PATIENCE_S)


async def test_closing_the_client_ends_its_streams(raw_server: RawServer) -> None:
    raw_server.scripts = [silent]
    client = AsyncClient(raw_server.url)
    stream = client.subscribe("a")
    await stream.__aenter__()
    reader = asyncio.ensure_future(collect(stream))
    await asyncio.sleep(0)
    await client.aclose()
    assert await in_time(reader) == []


async def collect(stream: Any) -> list[Any]:
    return [item async for item in stream]


@pytest.mark.parametrize("steps", range(12))
async def test_a_cancelled_wait_loses_nothing(raw_server: RawServer, steps: int) -> None:
    """Cancels after so many turns of the loop: while connecting, while reading, between two messages."""
    raw_server.scripts = [serve]
    async with AsyncClient(raw_server.url) as client, client.subscribe("chat.lobby", start=0) as stream:
        seen = [await anext(stream)]
        while len(seen) < 3:
            waiting = asyncio.ensure_future(anext(stream))
            for _ in range(steps):
                await asyncio.sleep(0)
            waiting.cancel()
            try:
                seen.append(await waiting)
            except asyncio.CancelledError:
                seen.append(await anext(stream))
        assert ids(seen) == LOG


async def test_a_cancelled_wait_for_nothing_leaves_a_stream_that_goes_on(raw_server: RawServer) -> None:
    raw_server.scripts = [silent, serve]
    async with AsyncClient(raw_server.url) as client, client.subscribe("a", start=0) as stream:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(stream)
        assert "not connected" in repr(stream)
        reader = asyncio.create_task(anext(stream))
        await asyncio.to_thread(raw_server.wait_for, 2)
        await cancel(reader)
    # Cancelled before or after `ready` was read, it stands where it stood: nothing lies between.
    assert raw_server.seen[1].headers["last-event-id"] in ("0", "9")


@pytest.mark.parametrize("rude", [True, False])
def test_a_stream_left_half_way_closes_its_connection(raw_server: RawServer, rude: bool) -> None:
    gone = threading.Event()

    def notice(exchange: Exchange) -> None:
        serve(exchange)
        gone.set()

    raw_server.scripts = [notice]
    with Client(raw_server.url) as client:

        def read() -> None:
            with client.subscribe("chat.lobby", start=0) as stream:
                for one in stream:
                    assert one.id == 3
                    if rude:
                        raise KeyError
                    return

        try:
            read()
        except KeyError:
            assert rude
        assert gone.wait(PATIENCE_S)
