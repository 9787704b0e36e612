"""`python -m load.hostile.attacks NAME PORT SECONDS`: one attack, from a process of its own.

An attacker opens its connections again when they are closed. One that is mute reads nothing after the
handshake, and its kernel takes little.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final

import msgspec

from load.websocket import handshake, masked
from load.wire import BodyStream, Target

HEAVY: Final = "heavy"
"""The channel of large messages, and the beginning of the names of the subscriptions to it."""
MEMBERS: Final = 32
CONNECTIONS: Final = 10
CROWD: Final = 80
ASKING: Final = 300
POSTERS: Final = 24
LONG: Final = "x" * 1_900_000
RECEIPT: Final = "AQAAAAAAAAABAAAAAAAABBIAAAAAAAAAAQAAAAAAAAAAk3v1hZxQ2mJ5o0aB"
_PAUSE_S: Final = 0.1
_RECEIVED_BYTES: Final = 64 * 1024
_PING, _PONG, _TEXT, _CONTINUED = 0x89, 0x8A, 0x81, 0x00

Attack = Callable[[Target], Coroutine[Any, Any, None]]


class Client(BodyStream):
    """A connection that sends `request`, and `rest` once it is answered."""

    def __init__(self, request: bytes, rest: bytes, *, mute: bool) -> None:
        self.closed = asyncio.Event()
        self._rest, self._mute = rest, mute
        super().__init__(request, self._answered, self.closed.set)

    def _answered(self, status: int, head: bytes) -> None:
        if self.transport is not None:
            self.transport.write(self._rest)
            if self._mute:
                self.transport.pause_reading()

    def _read(self, data: bytes) -> None:
        pass


async def _again(target: Target, request: bytes, rest: bytes, *, mute: bool) -> None:
    loop = asyncio.get_running_loop()
    while True:
        client = Client(request, rest, mute=mute)
        ours = socket.socket()
        ours.setblocking(False)
        if mute:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES)
        try:
            await loop.sock_connect(ours, (target.host, target.port))
            await loop.create_connection(lambda made=client: made, sock=ours)  # type: ignore[misc]
            await client.closed.wait()
        except OSError:
            ours.close()
        finally:
            client.abort()
        await asyncio.sleep(_PAUSE_S)


def _commands(commands: Sequence[dict[str, Any]]) -> bytes:
    """`connect`, and these, each in a message of its own."""
    numbered = [{"id": number, **command} for number, command in enumerate([{"connect": {}}, *commands], 1)]
    return b"".join(masked(msgspec.json.encode(command)) for command in numbered)


async def _together(count: int, attack: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(attack(number))


def _websocket(rest: Callable[[int], bytes], *, count: int = CONNECTIONS, mute: bool = True) -> Attack:
    """So many WebSockets, each of which sends the same again and again."""

    async def attack(target: Target) -> None:
        opening = handshake(target, "/v1/ws")
        await _together(count, lambda number: _again(target, opening, rest(number), mute=mute))

    return attack


def _followed(recover: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number in range(128):
        yield f"all-{number}", {"selection": {"channel": [HEAVY]}, **recover}


def _members(number: int) -> bytes:
    return _commands(
        [{"consume": {"subscription": f"{HEAVY}-{n}", "prefetch": 1000}} for n in range(MEMBERS)]
    )


def _recoveries(number: int) -> bytes:
    followed = _followed({"recover": True, "offset": 0, "epoch": ""})
    return _commands([{"subscribe": {"channel": name, **members}} for name, members in followed])


def _histories(number: int) -> bytes:
    return _commands([{"history": {"channel": HEAVY, "limit": 1000}}] * 150)


def _empty_frames(number: int) -> bytes:
    kinds = (_PING, _PONG, _TEXT, _CONTINUED)
    kind = kinds[number % len(kinds)]
    begun = bytes((0x01, 0x80, 0, 0, 0, 0)) if kind == _CONTINUED else b""
    return _commands([]) + begun + masked(b"", kind) * 200_000


def _long_names(number: int) -> bytes:
    return _commands(
        [
            {"subscribe": {"channel": f"{LONG}{n}", "selection": {"channel": ["modest"]}, "join_leave": True}}
            for n in range(MEMBERS)
        ]
    )


def _extensions(number: int) -> bytes:
    return _commands([{"extend": {"receipts": [RECEIPT]}}] * 2_000)


async def _emulated(target: Target) -> None:
    """Streamed answers, in place of WebSockets, that nobody reads."""
    subs = dict(_followed({"recover": True, "offset": 0, "epoch": ""}))
    body = msgspec.json.encode({"id": 1, "connect": {"subs": subs}})
    opening = target.request("POST", "/v1/ws/http_stream", body)
    await _together(CONNECTIONS, lambda number: _again(target, opening, b"", mute=True))


async def _crowd(target: Target) -> None:
    """Clients that are present on many channels, and many that ask who is there, each for another one."""

    def rest(number: int) -> bytes:
        names = [f"crowd-{number}-{n}" for n in range(128)]
        return _commands([{"subscribe": {"channel": name, "join_leave": True}} for name in names])

    def question(number: int) -> bytes:
        return _commands([{"presence": {"channel": f"crowd-{number % CROWD}-{number % 128}"}}])

    async with asyncio.TaskGroup() as group:
        group.create_task(_websocket(rest, count=CROWD, mute=False)(target))
        group.create_task(_websocket(question, count=ASKING, mute=False)(target))


async def _posts(target: Target) -> None:
    """Commands for a process that is not there."""

    async def post(number: int) -> None:
        body = {"session": "s", "node": f"{number:016x}", "data": LONG}
        request = target.request("POST", "/v1/ws/emulation", msgspec.json.encode(body))
        await _again(target, request, request * 20, mute=False)

    await _together(POSTERS, post)


async def _requests(target: Target) -> None:
    """Tiny HTTP requests, thousands in one write."""
    request = target.request("GET", "/healthz")
    mute = itertools.cycle((False, True))
    await _together(CONNECTIONS, lambda number: _again(target, request, request * 20_000, mute=next(mute)))


ATTACKS: Final[dict[str, Attack]] = {
    "members": _websocket(_members),
    "recoveries": _websocket(_recoveries),
    "histories": _websocket(_histories),
    "emulation": _emulated,
    "empty frames": _websocket(_empty_frames, mute=False),
    "long names": _websocket(_long_names, mute=False),
    "extensions": _websocket(_extensions, mute=False),
    "crowd": _crowd,
    "posts": _posts,
    "requests": _requests,
}


async def attack(name: str, port: int, seconds: float) -> None:
    """Attack for so long."""
    try:
        async with asyncio.timeout(seconds):
            await ATTACKS[name](Target("127.0.0.1", port))
    except TimeoutError:
        return


if __name__ == "__main__":
    asyncio.run(attack(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
