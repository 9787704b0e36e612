"""Streams over WebSocket with real sockets: cut at any byte, silent, refused, closed, cancelled, slow."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, Literal

import pytest
from gapless import (
    AsyncClient,
    CredentialExpired,
    Forbidden,
    Gap,
    GaplessError,
    HistoryLost,
    Message,
    ProtocolError,
)
from gapless._async.link import READ_AHEAD_BYTES

from tests.client.conftest import Later, turns
from tests.client.faces import Time
from tests.client.model import problem
from tests.client.push_server import PushServer, Speaker, Talk
from tests.client.raw_server import RawServer, answer, replies
from tests.patience import PATIENCE_S, eventually, in_time

LOG = [3, 5, 9]


@pytest.fixture
def server(raw_server: RawServer) -> PushServer:
    return PushServer(raw_server)


@pytest.fixture
def time() -> Time:
    return Time()


def client_of(server: PushServer, time: Time, **options: Any) -> AsyncClient:
    return AsyncClient(server.url, effects=time.async_effects(), **{"timeout": PATIENCE_S, **options})


async def take(stream: Any, count: int) -> list[int]:
    items = [await in_time(anext(stream)) for _ in range(count)]
    return [item.id for item in items if isinstance(item, Message)]


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.drill) for n in range(1, 9))])
async def test_a_cut_at_any_byte_neither_loses_nor_doubles(
    server: PushServer, time: Time, first: int
) -> None:
    """The nine together visit every byte of what the server says, its handshake and its frames."""
    async with client_of(server, time) as client:
        for cut in range(first, 1150, 9):
            server.limits = iter([cut])
            async with client.connect() as connection:
                stream = connection.subscribe("chat.lobby", start="earliest")
                assert await take(stream, 3) == LOG
                assert stream.cursor == 9


async def test_many_cuts_in_a_row_neither_lose_nor_double(server: PushServer, time: Time) -> None:
    server.limits = iter(range(0, 1100, 40))
    async with client_of(server, time) as client, client.connect() as connection:
        assert await take(connection.subscribe("chat.lobby", start=0), 3) == LOG
    assert len(server.raw.seen) > 10
    assert all(0 <= wait <= 30 for wait in time.waits)


async def test_a_subscription_goes_on_behind_the_last_message(server: PushServer, time: Time) -> None:
    def one_only(speaker: Speaker) -> None:
        name = server.connect_and_subscribe(speaker)
        speaker.say(server.push(name, 3))
        speaker.say(server.push("another", 4))

    server.talks = [one_only, server.serve]
    async with client_of(server, time) as client, client.connect() as connection:
        stream = connection.subscribe("chat.*", "b", start=0, types=["t"], keys=["k"])
        assert await take(stream, 3) == LOG
    first, second = server.bodies("subscribe")
    assert first["selection"] == {"channel": ["chat.*", "b"], "type": ["t"], "key": ["k"]}
    assert (first["recover"], first["offset"], second["offset"]) == (True, 0, 3)
    assert first["channel"] != second["channel"]


async def test_without_a_start_only_new_messages_come(server: PushServer, time: Time) -> None:
    def lose(speaker: Speaker) -> None:
        server.connect_and_subscribe(speaker)

    server.talks = [lose, server.serve]
    async with (
        client_of(server, time) as client,
        client.connect() as connection,
        connection.subscribe("a") as stream,
    ):
        assert stream.cursor == 9
        server.ids.append(12)
        assert await take(stream, 1) == [12]
    assert "recover" not in server.bodies("subscribe")[0]
    assert server.bodies("subscribe")[1]["offset"] == 9


async def test_streams_and_publishes_share_one_connection(server: PushServer, time: Time) -> None:
    async with client_of(server, time, token="t") as client, client.connect() as connection:
        streams = [connection.subscribe("a", start=0) for _ in range(20)]
        assert await asyncio.gather(*(take(stream, 3) for stream in streams)) == [LOG] * 20
        assert (await connection.publish("a", 1)).id == 1000
    assert len(server.raw.seen) == 1
    assert server.raw.seen[0].path == "/v1/ws"
    assert server.raw.seen[0].headers["authorization"] == "Bearer t"
    assert server.raw.seen[0].headers["user-agent"].startswith("gapless-python/")


async def test_silence_is_a_dead_connection(server: PushServer, time: Time, later: Later) -> None:
    server.ping = PATIENCE_S

    def fall_silent(speaker: Speaker) -> None:
        speaker.say(server.push(server.connect_and_subscribe(speaker), 3))
        speaker.hold()

    server.talks = [fall_silent, server.serve]
    async with client_of(server, time) as client, client.connect(lateness=PATIENCE_S) as connection:
        stream = connection.subscribe("chat.lobby", start=0)
        assert await take(stream, 1) == [3]
        later(2.1 * PATIENCE_S)
        assert await take(stream, 2) == LOG[1:]
    assert len(server.raw.seen) == 2


async def test_pings_are_answered_and_keep_a_quiet_connection(
    server: PushServer, time: Time, later: Later
) -> None:
    """It is quiet for ten times as long as it may be silent."""
    server.ping = PATIENCE_S
    answers: list[dict[str, Any]] = []
    pause = threading.Semaphore(0)

    def ping(speaker: Speaker) -> None:
        name = server.connect_and_subscribe(speaker)
        for _ in range(20):
            speaker.say({})
            answers.append(next(speaker.commands))
            pause.acquire(timeout=PATIENCE_S)
        speaker.say(*(server.push(name, id_) for id_ in LOG))
        speaker.hold()

    server.talks = [ping]
    async with (
        client_of(server, time) as client,
        client.connect(lateness=PATIENCE_S) as connection,
        connection.subscribe("a", start=0) as stream,
    ):
        for count in range(1, 21):
            await eventually(lambda count=count: len(answers) == count)  # type: ignore[misc]
            later(PATIENCE_S)
            await turns()
            pause.release()
        assert await take(stream, 3) == LOG
    assert answers == [{}] * 20
    assert len(server.raw.seen) == 1


def closing(server: PushServer, code: int) -> Talk:
    """Pushes one message and closes with this code."""

    def talk(speaker: Speaker) -> None:
        speaker.say(server.push(server.connect_and_subscribe(speaker), 3))
        speaker.close(code, "why not")

    return talk


@pytest.mark.parametrize("code", [3001, 3008])
async def test_a_server_that_stops_is_left_at_once(server: PushServer, time: Time, code: int) -> None:
    server.talks = [closing(server, code), server.serve]
    async with client_of(server, time) as client, client.connect() as connection:
        assert await take(connection.subscribe("a", start=0), 3) == LOG
    assert time.waits == []


@pytest.mark.parametrize("code", [1000, 1001, 1011, 3000, 3004, 3012, 3499, 3502, 4000, 4499])
async def test_after_most_closes_it_connects_again(server: PushServer, time: Time, code: int) -> None:
    server.talks = [closing(server, code), server.serve]
    async with client_of(server, time) as client, client.connect() as connection:
        assert await take(connection.subscribe("a", start=0), 3) == LOG
    assert server.bodies("subscribe")[1]["offset"] == 3


@pytest.mark.parametrize(
    ("code", "error", "name"),
    [
        (3005, CredentialExpired, "credential_expired"),
        (3500, GaplessError, "closed_3500"),
        (3999, GaplessError, "closed_3999"),
        (4500, GaplessError, "closed_4500"),
        (1002, ProtocolError, "protocol"),
        (1008, ProtocolError, "protocol"),
        (1009, ProtocolError, "protocol"),
    ],
)
async def test_closes_for_good_are_raised_and_the_cursor_kept(
    server: PushServer, time: Time, code: int, error: type[GaplessError], name: str
) -> None:
    server.talks = [closing(server, code), server.serve]
    async with client_of(server, time, token="t") as client, client.connect() as connection:
        stream = connection.subscribe("a", start=0)
        assert await take(stream, 1) == [3]
        with pytest.raises(error) as caught:
            await take(stream, 1)
        assert (caught.value.code, stream.cursor) == (name, 3)
        assert [item async for item in stream] == []
        # What comes next opens the connection again.
        assert await take(connection.subscribe("a", start=3), 2) == LOG[1:]


async def test_a_token_that_is_renewed_goes_on_after_it_expired(server: PushServer, time: Time) -> None:
    server.talks = [closing(server, 3005), server.serve]
    tokens = iter(["one", "two"])
    client = client_of(server, time, token=lambda: next(tokens))
    async with client, client.connect() as connection:
        assert await take(connection.subscribe("a", start=0), 3) == LOG
    assert [seen.headers["authorization"] for seen in server.raw.seen] == ["Bearer one", "Bearer two"]


async def test_a_refused_handshake_is_raised_by_entering_and_by_the_first_read(
    server: PushServer, time: Time
) -> None:
    server.raw.scripts = replies(answer(403, problem(403, "forbidden")))
    async with client_of(server, time) as client:
        with pytest.raises(Forbidden):
            async with client.connect():
                pass
        with pytest.raises(Forbidden):
            await take(client.connect().subscribe("a"), 1)
        with pytest.raises(Forbidden):
            await client.connect().publish("a", 1)
    assert time.waits == []


@pytest.mark.parametrize("status", [200, 302])
async def test_a_login_page_is_not_taken_for_a_connection(
    server: PushServer, time: Time, status: int
) -> None:
    server.raw.scripts = replies(answer(status, {"hello": "world"}, Location="http://other.test/"))
    async with client_of(server, time) as client:
        with pytest.raises(ProtocolError):
            async with client.connect():
                pass
        with pytest.raises(ProtocolError):
            await take(client.connect().subscribe("a"), 1)


async def test_a_service_that_is_not_there_yet_is_waited_for(server: PushServer, time: Time) -> None:
    honest = server.raw.scripts
    busy = replies(b"", answer(503, problem(503, "unavailable"), Retry_After="4"), answer(502, "x"))
    server.raw.scripts = [*busy, *honest]
    async with client_of(server, time) as client:
        assert await take(client.connect().subscribe("a", start=0), 3) == LOG
        assert sum(time.waits) == pytest.approx(0.5 + 5.0 + 2.0, abs=0.5)
        server.raw.seen.clear()
        async with client.connect() as connection:
            server.raw.seen.clear()
            assert (await connection.publish("a", 1)).id == 1000
        server.raw.seen.clear()
        assert (await client.connect().publish("a", 1)).id == 1001


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[1]",
        b'{"x":1}',
        b'{"push":3}',
        b'{"id":99,"publish":{}}',
        b'{"id":"1","publish":{}}',
        b'{"id":-1,"publish":{}}',
        b"[" * 100_000,
        b'{"push":{"channel":"s1","pub":{"offset":7}}}',
        b'{"push":{"channel":"s1","gap":[]}}',
        b'{"push":{"channel":"s1","ready":{}}}',
        b'{"push":{"channel":"s1","unsubscribe":{}}}',
        b"\xff\xfe",
    ],
)
async def test_garbage_ends_a_stream(server: PushServer, time: Time, line: bytes) -> None:
    def talk(speaker: Speaker) -> None:
        assert server.connect_and_subscribe(speaker) == "s1"
        speaker.text(line)
        speaker.hold()

    server.talks = [talk]
    async with client_of(server, time) as client, client.connect() as connection:
        stream = connection.subscribe("a", start=0)
        with pytest.raises(ProtocolError):
            await take(stream, 1)
        assert "closed" in repr(stream)


@pytest.mark.parametrize(
    "frame",
    [b"\x82\x01x", b"\x81\x7f" + (2**40).to_bytes(8, "big"), b"\x83\x00", b"\xff\x00", b"\x81\x81\0\0\0\0x"],
    ids=["binary", "huge", "unknown", "reserved", "masked"],
)
async def test_frames_that_no_server_sends_end_a_stream(server: PushServer, time: Time, frame: bytes) -> None:
    def talk(speaker: Speaker) -> None:
        server.connect_and_subscribe(speaker)
        speaker.raw(frame)
        speaker.hold()

    server.talks = [talk]
    async with client_of(server, time) as client, client.connect() as connection:
        with pytest.raises(ProtocolError):
            await take(connection.subscribe("a", start=0), 1)


async def test_a_slow_reader_neither_holds_up_others_nor_grows(server: PushServer, time: Time) -> None:
    server.ids = list(range(1, 121))
    server.data = "x" * (READ_AHEAD_BYTES // 20)
    async with client_of(server, time) as client, client.connect() as connection:
        slow = connection.subscribe("slow", start=0)
        assert await take(slow, 1) == [1]
        assert await take(connection.subscribe("fast", start=0), 120) == server.ids
        assert (await connection.publish("a", 1)).id == 1000
        assert len(server.bodies("unsubscribe")) == 1
        assert slow._inlet is not None  # type: ignore[attr-defined]
        assert slow._inlet._waiting_bytes < 1.1 * READ_AHEAD_BYTES  # type: ignore[attr-defined]
        assert await take(slow, 119) == server.ids[1:]
    assert len(server.raw.seen) == 1
    assert time.waits == []


async def test_a_message_of_any_size_reaches_its_reader(server: PushServer, time: Time) -> None:
    server.data = "x" * (2 * READ_AHEAD_BYTES)
    async with client_of(server, time) as client, client.connect() as connection:
        assert await take(connection.subscribe("a", start=0), 3) == LOG


@pytest.mark.parametrize("turns", range(0, 60, 4))
async def test_a_cancelled_wait_loses_nothing_and_keeps_the_connection(
    server: PushServer, time: Time, turns: int
) -> None:
    """Cancels after so many turns of the loop: while connecting, subscribing, between two messages."""
    async with client_of(server, time) as client, client.connect() as connection:
        stream = connection.subscribe("chat.lobby", start=0)
        seen: list[int] = []
        while len(seen) < 3:
            waiting = asyncio.ensure_future(anext(stream))
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            try:
                seen.append((await waiting).id)
            except asyncio.CancelledError:
                seen += await take(stream, 1)
    assert seen == LOG
    assert len(server.raw.seen) == 1


async def test_closing_releases_those_who_wait(server: PushServer, time: Time) -> None:
    async def rest(stream: Any) -> list[Any]:
        return [item async for item in stream]

    async with client_of(server, time) as client:
        connection = client.connect()
        streams = [connection.subscribe("a", start=9) for _ in range(3)]
        readers = [asyncio.ensure_future(rest(stream)) for stream in streams]
        await streams[2].__aenter__()
        await streams[0].aclose()
        assert await in_time(readers[0]) == []
        await connection.aclose()
        await connection.aclose()
        assert await in_time(readers[1]) == []
        with pytest.raises(RuntimeError):
            await connection.publish("a", 1)
        another = client.connect()
        last = asyncio.ensure_future(rest(another.subscribe("a", start=9)))
        await asyncio.sleep(0)
    assert await in_time(last) == []
    assert "closed" in repr(another)


async def test_closing_a_stream_ends_its_subscription_only(server: PushServer, time: Time) -> None:
    async with client_of(server, time) as client, client.connect() as connection:
        async with connection.subscribe("a", start=0) as left, connection.subscribe("b", start=0) as kept:
            assert await take(left, 1) == [3]
            await left.aclose()
            assert [item async for item in left] == []
            assert await take(kept, 3) == LOG
        await connection.publish("a", 1)
        assert [one["channel"] for one in server.bodies("unsubscribe")] == ["s1", "s2"]


async def test_a_subscription_that_the_server_ended_is_opened_again(server: PushServer, time: Time) -> None:
    def talk(speaker: Speaker) -> None:
        name = server.connect_and_subscribe(speaker)
        ended = {"channel": name, "unsubscribe": {"code": 2500, "reason": "insufficient state"}}
        speaker.say(server.push(name, 3), {"push": ended}, server.push(name, 7))
        server.serve(speaker)

    server.talks = [talk]
    async with client_of(server, time) as client, client.connect() as connection:
        assert await take(connection.subscribe("a", start=0), 3) == LOG
    assert len(server.raw.seen) == 1


async def test_a_subscription_that_the_server_ended_for_good_is_an_error(
    server: PushServer, time: Time
) -> None:
    def talk(speaker: Speaker) -> None:
        name = server.connect_and_subscribe(speaker)
        speaker.say({"push": {"channel": name, "unsubscribe": {"code": 2000, "reason": "no"}}})
        speaker.hold()

    server.talks = [talk]
    async with client_of(server, time) as client, client.connect() as connection:
        with pytest.raises(GaplessError) as caught:
            await take(connection.subscribe("a", start=0), 1)
    assert caught.value.code == "unsubscribed_2000"


@pytest.mark.parametrize("from_earliest", [True, False])
async def test_gaps_are_told_unless_the_earliest_was_asked_for(
    server: PushServer, time: Time, from_earliest: bool
) -> None:
    def talk(speaker: Speaker) -> None:
        name = server.connect_and_subscribe(speaker)
        before = {"channel": "a", "first_seq": 8, "missed": 7}
        later = {"channel": "a", "first_seq": 20, "missed": 4}
        speaker.say({"push": {"channel": name, "gap": before}})
        speaker.say(server.push(name, 9), {"push": {"channel": name, "gap": later}})
        speaker.hold()

    server.talks = [talk]
    start: Literal["earliest", 0] = "earliest" if from_earliest else 0
    async with client_of(server, time) as client, client.connect() as connection:
        stream = connection.subscribe("a", start=start)
        if not from_earliest:
            with pytest.raises(HistoryLost) as caught:
                await take(stream, 1)
            assert caught.value.gap == Gap("a", first_seq=8, missed=7)
        assert await take(stream, 1) == [9]
        with pytest.raises(HistoryLost) as caught:
            await take(stream, 1)
        assert caught.value.gap == Gap("a", first_seq=20, missed=4)


async def test_what_websocket_has_not_is_refused_at_once(server: PushServer, time: Time) -> None:
    options: dict[str, Any] = {"heartbeat": 5}
    async with client_of(server, time) as client:
        with pytest.raises(ValueError, match="WebSocket has no"):
            client.connect().subscribe("a", **options)
        with pytest.raises(ValueError, match="at least one"):
            client.connect().subscribe()


async def test_no_representation_shows_the_token(server: PushServer, time: Time) -> None:
    async with client_of(server, time, token="secret-token") as client:
        connection = client.connect()
        assert "not connected" in repr(connection)
        async with connection, connection.subscribe("a", start=7) as stream:
            assert "open" in repr(connection)
            assert "7" in repr(stream)
            assert "secret-token" not in repr((connection, stream, vars(connection), vars(stream)))
