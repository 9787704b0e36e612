"""A connection of this service whose client takes bytes when it is told to, under virtual time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import uvicorn
from uvicorn.server import ServerState

from app.faces.websocket.framing import FRAMES
from app.faces.websocket.session import Parts, Session
from app.http.browsers.rules import Browsers
from app.http.connections import Shared, shared_by
from app.http.protocol import GaplessHttpProtocol
from app.http.request import Request
from app.http.websocket import WebSocketConnection
from app.metrics.registry import CUT_OFF
from load.websocket import Messages
from subscriptions.domain.model import Append, NewMessage
from subscriptions.domain.principal import Principal
from subscriptions.engine.durable.member import Member
from tests.contract.memory import MemoryAppender
from tests.contract.memory_log import MemoryLog
from tests.engine.test_consumers import NS, Stage
from tests.patience import cancel
from tests.sim.loop import SeededLoop, run
from tests.unit.websocket.test_reader import World
from tests.unit.websocket.test_session import parts

LONG_S = 1e6


class Pipe(asyncio.Transport):
    """A transport of uvloop with high water at 0, as far as connections use it: it holds what its client does
    not take."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.protocol: Any = None
        self.reads = True
        """Whether its client takes all at once."""
        self.waiting = b""
        self.got = b""
        self.taken_bytes = 0
        self._socket = socket.socket()
        self._is_paused = self._is_closing = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._socket if name == "socket" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._is_closing
        self.waiting += data
        if self.reads:
            self._move()
        elif not self._is_paused:
            self._is_paused = True
            self.protocol.pause_writing()

    def _move(self) -> None:
        self.got += self.waiting
        self.taken_bytes += len(self.waiting)
        self.waiting = b""

    def take(self) -> bytes:
        """The client takes what waits, and what it took before."""
        self._move()
        if self._is_paused and not self._is_closing:
            self._is_paused = False
            self.protocol.resume_writing()
        got, self.got = self.got, b""
        return got

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self.protocol
        return protocol

    def pause_reading(self) -> None:
        """What it is told does not come through here."""

    resume_reading = pause_reading

    def is_closing(self) -> bool:
        return self._is_closing

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self.loop.call_soon(self._lost)

    close = abort

    def _lost(self) -> None:
        self._socket.close()
        self.waiting = b""
        self.protocol.connection_lost(None)


class Http(GaplessHttpProtocol):
    __slots__ = ()
    browsers = Browsers(["x"])
    patience_s = slow_reader_s = LONG_S


class Scene:
    """A service in memory, with connections to it. `built_bytes`: of all frames that were made for them."""

    def __init__(self, loop: SeededLoop, limit_bytes: int = 1 << 40) -> None:
        self.loop = loop
        self.world, self.stage = World(loop, 1), Stage(loop)
        self.parts: Parts = parts(self.world, self.stage)
        self.parts.queues.gate.open([NS])
        self.state = ServerState()
        self.shared: Shared = shared_by(self.state, loop, 0.5, limit_bytes)
        self.built_bytes = 0
        self.framing = FRAMES._replace(frame=self._frame)
        self.pipes: list[Pipe] = []

    def _frame(self, text: bytes) -> bytes:
        frame = FRAMES.frame(text)
        self.built_bytes += len(frame)
        return frame

    @property
    def held_bytes(self) -> int:
        return self.shared.budget.held_bytes

    @property
    def members(self) -> list[Member]:
        groups = self.stage.consumers._active.values()
        return [member for group in groups for member in group.members]

    @property
    def unsent_bytes(self) -> int:
        """All that was built and is not taken."""
        return self.built_bytes - sum(pipe.taken_bytes for pipe in self.pipes)

    @property
    def inbox_bytes(self) -> int:
        return sum(member._inbox_bytes for member in self.members)

    def websocket(self) -> Client:
        """A client that has connected and reads nothing from here on."""
        pipe = Pipe(self.loop)
        connection = WebSocketConnection(pipe, self.loop, self.shared, self.state, LONG_S)
        session = Session(connection, self.framing, self.parts, Principal(NS), lambda session: None)
        pipe.protocol = connection
        connection.begin(session)
        self.pipes.append(pipe)
        client = Client(pipe, session)
        client.send({"id": 1, "connect": {}})
        session._replies.flush()
        assert [said["id"] for said in client.take()] == [1]
        pipe.reads = False
        return client

    def http(self, head: bytes, handler: Callable[[Request[Any]], Awaitable[Any]], query: Any = None) -> Pipe:
        """A client that has sent a request, which `handler` takes, and reads nothing from here on."""

        async def application(scope: Any, receive: Any, send: Any) -> None:
            await handler(Request(Principal(NS), scope, receive, send, b"1", "q", 0, query))

        config = uvicorn.Config(application, lifespan="off", log_config=None, http=Http)
        config.load()
        pipe = Pipe(self.loop)
        pipe.protocol = Http(config, self.state, {}, self.loop)
        pipe.protocol.connection_made(pipe)
        pipe.reads = False
        pipe.protocol.data_received(head)
        self.pipes.append(pipe)
        return pipe

    async def stop(self) -> None:
        for pipe in self.pipes:
            pipe.abort()
        await asyncio.sleep(1)
        await cancel(self.world.running)
        await self.stage.consumers.stop()
        assert self.held_bytes == 0


class Client:
    """The client of a WebSocket."""

    def __init__(self, pipe: Pipe, session: Session) -> None:
        self.pipe = pipe
        self.session = session
        self._messages = Messages()

    def send(self, *commands: dict[str, Any]) -> None:
        self.session.received(b"\n".join(map(msgspec.json.encode, commands)))

    def take(self) -> list[dict[str, Any]]:
        """What the server said since the last call."""
        messages = self._messages.feed(self.pipe.take())
        return [msgspec.json.decode(line) for message in messages for line in message.split(b"\n")]


async def store(log: MemoryLog, channel: str, count: int, size_bytes: int) -> None:
    """Commit messages of this size that nobody is told of."""
    new = tuple(NewMessage(channel, b'"%b"' % (b"x" * (size_bytes - 2))) for _ in range(count))
    await MemoryAppender(log).append([Append(NS, new)])


def gave_way() -> float:
    return float(CUT_OFF.labels("buffers_full")._value.get())


def play(program: Callable[[Scene], Awaitable[None]], limit_bytes: int = 1 << 40) -> None:
    """Play it under virtual time. In the end nothing is held."""

    async def played() -> None:
        scene = Scene(loop, limit_bytes)
        await program(scene)
        await scene.stop()

    loop = SeededLoop(1)
    run(played(), loop=loop)
