"""A server that answers each WebSocket message with the same message, on the connections of the service."""

from __future__ import annotations

import asyncio
from typing import Any

from websockets.frames import Opcode

from app.http.browsers.rules import EVERY_ANSWER, Browsers
from app.http.protocol import GaplessHttpProtocol
from app.http.websocket import WebSocketConnection, accept, text_frame
from tests.unit.wire.http_server import Running, until

NORMAL = 1000


class EchoHttpProtocol(GaplessHttpProtocol):
    __slots__ = ()
    browsers = Browsers(["x", "127.0.0.1"])


class Connection(WebSocketConnection):
    """A connection that tells its receiver the kind of each message."""

    __slots__ = ()
    accepts_binary = True
    _receiver: Echo | None

    def _pass_on(self, opcode: Opcode, message: bytes) -> None:
        if self._receiver is not None:
            self._receiver.is_binary = opcode is Opcode.BINARY
        super()._pass_on(opcode, message)


class Echo:
    """The receiver of one connection."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self.connection = connection
        self.is_binary = False
        self.was_dropped = False

    def received(self, message: bytes) -> None:
        if message == b"close":
            self.connection.close(NORMAL, "asked")
            return
        frame = text_frame(message)
        self.connection.write(b"\x82" + frame[1:] if self.is_binary else frame)

    def dropped(self) -> None:
        self.was_dropped = True

    def stop(self) -> None:
        self.connection.close(1001, "going away")

    def slow_ending(self) -> tuple[int, str]:
        return 3008, "slow"


class Application:
    """A request that offers an upgrade becomes an echo; others get the refusal of `accept`. `/late` waits
    until its client has left, and `/much` answers with more bytes than a socket holds."""

    MUCH_BYTES = 16 * 1024 * 1024

    def __init__(self) -> None:
        self.echoes: list[Echo] = []

    @property
    def is_over(self) -> bool:
        """Whether every echo was dropped."""
        return all(echo.was_dropped for echo in self.echoes)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        http: GaplessHttpProtocol = scope["extensions"]["gapless"]
        if scope["path"] == "/much":
            await self.answer(send, 200, b"x" * self.MUCH_BYTES)
            return
        if scope["path"] == "/late":
            left = asyncio.Event()
            http.on_lost = left.set
            if not http.transport.is_closing():
                await left.wait()
        headers = [*scope["headers"], *([(b"upgrade", b"websocket")] if http.offers_websocket else [])]
        response = accept(scope["path"], headers, "echo")
        if response.status_code != 101:
            await self.answer(send, response.status_code, bytes(response.body or b""))
            return
        connection = http.hand_over(response.serialize())
        connection.__class__ = Connection
        echo = Echo(connection)
        self.echoes.append(echo)
        connection.begin(echo)

    async def answer(self, send: Any, status: int, body: bytes) -> None:
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": status, "headers": [length]})
        await send({"type": "http.response.body", "body": body})


class EchoServer(Running):
    """The service in a thread, with the settings of a worker."""

    def __init__(self, http: type[EchoHttpProtocol] = EchoHttpProtocol) -> None:
        super().__init__(
            http,
            headers=list(EVERY_ANSWER),
            ws="none",
            loop="uvloop",
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=75,
        )
        self.echo = Application()
        self.config.app = self.echo

    def __enter__(self) -> EchoServer:
        super().__enter__()
        return self

    @property
    def address(self) -> str:
        """Its host and port."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"{host}:{port}"


def accept_all(server: EchoServer) -> None:
    """Return once the server has accepted all that connected before: it does so in their order."""
    with server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        until(connection, b"\r\n\r\n")
