"""A real server of the HTTP protocol in a thread, and a client that speaks to it byte by byte.

The server's limits pass when a test says so: a busy machine that stops for a while breaks none of them.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import uvicorn

from app.http.browsers.rules import Browsers
from app.http.connections import Shared, _shared
from app.http.protocol import GaplessHttpProtocol
from tests.patience import PATIENCE_S, wait_until

T = TypeVar("T")

JSON = b"Content-Type: application/json"
CHUNK_BYTES = 256 * 1024
MUCH_BYTES = 64 * 1024 * 1024
GOODBYE = b"event: goodbye"
GET = b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n"


LONG_S = 1000.0
"""No test lasts so long: `Running.pass_time` lets a limit of this length pass."""


class Patient(GaplessHttpProtocol):
    browsers = Browsers(["x"])
    patience_s = slow_reader_s = LONG_S
    linger_s = LONG_S / 10
    tick_s = 0.05


class Clock:
    """The event loop of a server. `passed_s` is added to its time; its timers are as they were."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.passed_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loop, name)

    def time(self) -> float:
        return self.loop.time() + self.passed_s


class Application:
    """/echo answers with the body's length, /early before reading it, /stream goes on until it is let go,
    /much sends more than any socket holds."""

    def __init__(self) -> None:
        self.disconnected = threading.Event()
        self.connection: Any = None
        self.headers: list[tuple[bytes, bytes]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.headers = scope["headers"]
        answer = b"" if scope["path"] == "/early" else await self.read(receive)
        start = {"type": "http.response.start", "status": 200, "headers": []}
        if scope["path"] == "/stream":
            self.connection = scope["extensions"]["gapless"]
            await send(start)
            await send({"type": "http.response.body", "body": b"hello", "more_body": True})
            while (await receive())["type"] != "http.disconnect":
                pass
            self.disconnected.set()
            return
        if scope["path"] == "/much":
            scope["extensions"]["gapless"].goodbye = GOODBYE
            await send(start)
            for _ in range(MUCH_BYTES // CHUNK_BYTES):
                await send({"type": "http.response.body", "body": b"x" * CHUNK_BYTES, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
            return
        start["headers"] = [(b"content-length", b"%d" % len(answer))]
        await send(start)
        await send({"type": "http.response.body", "body": answer})

    async def read(self, receive: Any) -> bytes:
        length = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnected.set()
                return b""
            length += len(message["body"])
            if not message["more_body"]:
                return b"%d" % length


class Running(uvicorn.Server):
    """A server in a thread of its own."""

    def __init__(self, http: type[asyncio.Protocol], **options: Any) -> None:
        self.application = Application()
        config = uvicorn.Config(
            self.application,
            http=http,
            port=0,
            lifespan="off",
            log_level="critical",
            **{"timeout_keep_alive": int(LONG_S), **options},
        )
        super().__init__(config)
        self._http: Callable[..., asyncio.Protocol] = http
        self.up = threading.Event()
        self.thread = threading.Thread(target=self.run)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.clock = Clock(asyncio.get_running_loop())
        self.config.http_protocol_class = self._made  # type: ignore[assignment]
        await super().startup(sockets)
        self.up.set()

    def _made(self, *, _loop: None, **given: Any) -> asyncio.Protocol:
        return self._http(_loop=self.clock, **given)

    def __enter__(self) -> Running:
        self.thread.start()
        assert self.up.wait(PATIENCE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self.should_exit = self.force_exit = True
        self.thread.join(PATIENCE_S)

    @property
    def shared(self) -> Shared:
        """Made with the first connection."""
        wait_until(lambda: self.server_state in _shared)
        return _shared[self.server_state]

    def connect(self) -> socket.socket:
        address = self.servers[0].sockets[0].getsockname()
        return socket.create_connection(address, timeout=PATIENCE_S)

    def look(self, at: Callable[[], T]) -> T:
        """What this gives in the thread of the server, where nothing is half done."""

        async def looking() -> T:
            return at()

        return asyncio.run_coroutine_threadsafe(looking(), self.clock.loop).result(PATIENCE_S)

    def pass_time(self, seconds: float) -> None:
        """As if everything that the server waits for had begun so much earlier."""
        self.clock.passed_s += seconds

    def end_of(self, connection: socket.socket) -> Any:
        """The server's end of a connection; None when it is gone, or not there yet."""
        name = connection.getsockname()
        return self.look(
            lambda: next(
                (one for one in self.server_state.connections if _client_of(one) == name),
                None,
            )
        )

    def await_part(self, connection: socket.socket) -> Any:
        """Wait until a part of a request has come, and the server waits for the rest; its end."""
        wait_until(lambda: (end := self.end_of(connection)) is not None and end._phase_began >= 0)
        return self.end_of(connection)


def _client_of(end: Any) -> Any:
    return end.transport.get_extra_info("peername")


def everything(connection: socket.socket) -> bytes:
    """What the server sends until it closes."""
    received = b""
    while part := connection.recv(65536):
        received += part
    return received


def until(connection: socket.socket, text: bytes, times: int = 1) -> bytes:
    """What the server sends until it has sent `text` so many times."""
    received = b""
    while received.count(text) < times:
        part = connection.recv(65536)
        assert part, received
        received += part
    return received


def exchange(server: Running, *parts: bytes) -> bytes:
    with server.connect() as connection:
        for part in parts:
            connection.sendall(part)
        return everything(connection)


def check_problem(answer: bytes, status: int, code: str) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    status_line, *fields = head.split(b"\r\n")
    headers = {name.lower(): value for name, value in (field.split(b": ", 1) for field in fields)}
    document = json.loads(body)
    assert status_line.startswith(b"HTTP/1.1 %d " % status)
    assert (document["status"], document["code"]) == (status, code)
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"connection"] == b"close"
    assert headers[b"x-request-id"]
    assert int(headers[b"content-length"]) == len(body)


def post(*fields: bytes, body: bytes = b"", path: bytes = b"/echo") -> bytes:
    lines = b"".join(field + b"\r\n" for field in (b"Host: x", JSON, *fields))
    return b"POST %b HTTP/1.1\r\n%b\r\n%b" % (path, lines, body)
