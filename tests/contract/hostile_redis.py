"""A server that speaks as Redis does when something is wrong with it, or is no Redis at all.

Healthy, it is a way to the real one. `turn` makes every connection end and gives the next ones a behaviour.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import hiredis

from load.relay import Streams, until_first_ends


class Conversation:
    """One connection of a client, seen from the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._parser = hiredis.Reader()

    async def command(self) -> list[bytes]:
        """The next whole command."""
        while (command := self._parser.gets()) is False:
            self._parser.feed(await self.some())
        assert isinstance(command, list)
        return command

    async def some(self) -> bytes:
        """Whatever comes next."""
        if data := await self._reader.read(65536):
            return data
        raise ConnectionResetError

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        """End it by RST."""
        sock = self.writer.get_extra_info("socket")
        if sock is not None:  # If the peer ended it first, the socket is closed or already gone.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Play = Callable[[Conversation], Awaitable[None]]


class HostileRedis:
    """`met` counts connections since the last turn."""

    def __init__(self, target_url: str) -> None:
        self._target_url = target_url
        self._streams = Streams()
        self._talks: set[Conversation] = set()
        self._play: Play | None = None
        self._port = 0
        self.met = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._port}"

    async def start(self) -> None:
        self._streams = Streams()
        self._port = await self._streams.listen(self._serve, self._port)

    async def turn(self, play: Play | None) -> None:
        """Behave so from now on; None: be well."""
        self._play = play
        self.met = 0
        for talk in self._talks:
            talk.reset()
        await self._streams.drop()

    async def stop(self) -> None:
        for talk in self._talks:
            talk.reset()
        await self._streams.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = Conversation(reader, writer)
        self._talks.add(talk)
        self.met += 1
        try:
            await (self._play or self.pass_on)(talk)
        finally:
            self._talks.discard(talk)
            writer.transport.abort()

    async def pass_on(self, talk: Conversation, pace_s: float = 0.0) -> None:
        """Be the real one; with a pace, byte after byte."""
        async with self._streams.connected_to(self._target_url) as (there, back):

            async def requests() -> None:
                while True:
                    back.write(await talk.some())
                    await back.drain()

            async def answers() -> None:
                while data := await there.read(1 if pace_s else 65536):
                    await talk.say(data)
                    await asyncio.sleep(pace_s)

            await until_first_ends(requests(), answers())


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What it does; `takes`: it says yes to what is published."""

    play: Callable[[HostileRedis], Play]
    takes: bool = False


def _always(data: bytes) -> Behaviour:
    """The same answer to everything."""

    async def play(talk: Conversation) -> None:
        while True:
            await talk.command()
            await talk.say(data)

    return Behaviour(lambda _: play)


def _once(data: bytes) -> Behaviour:
    """An answer to what comes first, then nothing more."""

    async def play(talk: Conversation) -> None:
        await talk.some()
        await talk.say(data)
        while True:
            await talk.some()

    return Behaviour(lambda _: play)


def _endless(first: bytes, again: bytes) -> Behaviour:
    async def play(talk: Conversation) -> None:
        await talk.some()
        await talk.say(first)
        while True:
            await talk.say(again)

    return Behaviour(lambda _: play)


async def _resets(talk: Conversation) -> None:
    talk.reset()


async def _resets_when_asked(talk: Conversation) -> None:
    await talk.some()
    talk.reset()


async def _closes(talk: Conversation) -> None:
    return


async def _says_nothing(talk: Conversation) -> None:
    while True:
        await talk.some()


async def _takes_nothing(talk: Conversation) -> None:
    await asyncio.Event().wait()


def _bulk(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def _polite(subscribed: bytes | None, heard: Callable[[list[bytes]], bytes] = lambda topics: b"") -> Play:
    """Answers everything well. `subscribed`: in place of the confirmation, `heard`: what follows it."""

    async def play(talk: Conversation) -> None:
        listening = False
        while True:
            name, *rest = await talk.command()
            if name == b"SUBSCRIBE":
                listening = True
                confirmed = [b"*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n" % (len(t), t) for t in rest]
                await talk.say(b"".join(confirmed) if subscribed is None else subscribed)
                await talk.say(heard(rest))
            elif name == b"PUBSUB":
                await talk.say(b"*2\r\n$%d\r\n%s\r\n:2\r\n" % (len(rest[1]), rest[1]))
            elif name == b"PING":
                await talk.say(_bulk(b"pong", b"") if listening else b"+PONG\r\n")
            else:
                await talk.say(b":1\r\n")

    return play


ERRORS = [
    "MOVED 3999 127.0.0.1:6381",
    "ASK 3999 127.0.0.1:6381",
    "CLUSTERDOWN The cluster is down",
    "LOADING Redis is loading the dataset in memory",
    "NOAUTH Authentication required.",
    "WRONGPASS invalid username-password pair or user is disabled.",
    "NOPERM this user has no permissions",
    "READONLY You can't write against a read only replica.",
    "MASTERDOWN Link with MASTER is down",
    "MISCONF Redis is configured to save RDB snapshots",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "BUSY Redis is busy running a script.",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "ERR max number of clients reached",
    "ERR unknown command",
    "\x1b]0;forged\x07 a code that nobody knows",
]

BEHAVIOURS: dict[str, Behaviour] = {
    "accepts and resets": Behaviour(lambda _: _resets),
    "resets when asked": Behaviour(lambda _: _resets_when_asked),
    "accepts and closes": Behaviour(lambda _: _closes),
    "never answers": Behaviour(lambda _: _says_nothing),
    "never reads": Behaviour(lambda _: _takes_nothing),
    "half a line": _once(b"+O"),
    "half a message": _once(b"*3\r\n$7\r\nmessage\r\n$100\r\nabc"),
    "a web server": _once(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
    "a TLS server": _once(b"\x15\x03\x01\x00\x02\x02\x46"),
    "random bytes": _once(bytes(range(255, 0, -1)) * 4),
    "not text": _always(b"-\xff\xfe\xfd\r\n"),
    "numbers": _always(b":1\r\n"),
    "nulls": _always(b"$-1\r\n"),
    "no array": _always(b"*-1\r\n"),
    "empty arrays": _always(b"*0\r\n"),
    "maps": _always(b"%1\r\n+a\r\n:1\r\n"),
    "pushes": _always(b">2\r\n+message\r\n+x\r\n"),
    "nothing but ok": _always(b"+OK\r\n"),
    "deep arrays": _always(b"*1\r\n" * 10_000),
    "an array of a billion": _once(b"*1000000000\r\n"),
    "arrays of a billion, in halves": _once(b"*3\r\n*1000000000\r\n"),
    "a message without an end": _endless(b"$2000000000\r\n", b"x" * 65536),
    "a line without an end": _endless(b"+", b"x" * 65536),
    "answers that nobody asked for": _endless(b"", b"+OK\r\n" * 1000),
    "byte after byte": Behaviour(lambda server: lambda talk: server.pass_on(talk, pace_s=0.15)),
    "takes all, passes nothing on": Behaviour(lambda _: _polite(None), takes=True),
    "confirms no subscription": Behaviour(lambda _: _polite(b""), takes=True),
    "confirms another subscription": Behaviour(
        lambda _: _polite(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n"), takes=True
    ),
    "ends the subscription": Behaviour(
        lambda _: _polite(None, lambda topics: _bulk(b"unsubscribe", topics[0], b"0")), takes=True
    ),
    "messages of other topics": Behaviour(
        lambda _: _polite(None, lambda topics: _bulk(b"message", b"x", b"y")), takes=True
    ),
    "messages without content": Behaviour(
        lambda _: _polite(None, lambda topics: b"*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$-1\r\n"), takes=True
    ),
} | {f"says {text.split()[0]!a}{n}": _always(f"-{text}\r\n".encode()) for n, text in enumerate(ERRORS)}
