"""All WebSocket sessions of a process. The route opens them; a loop asks whether they are still there."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Final

from starlette.types import Scope

from app.faces.websocket import codes
from app.faces.websocket.framing import FRAMES, Framing
from app.faces.websocket.session import CONNECT_S, PING_S, PONG_S, Parts, Session
from app.faces.websocket.stream_connection import StreamConnection
from app.http import problem
from app.http.asgi.websocket import AsgiWebSocket
from app.http.protocol import GaplessHttpProtocol
from app.http.request import Answer, Plain
from app.http.websocket import WebSocketConnection, accept
from app.metrics.registry import REQUESTS
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.principal import Principal

PROTOBUF: Final = "centrifuge-protobuf"
SUBPROTOCOLS: Final = ("centrifuge-json", PROTOBUF)
"""Protobuf is not read. But if it is not chosen, a client that offers nothing else takes that for a broken
connection and tries again for ever. So it is chosen, and the connection is closed for good."""
CHECK_S: Final = 1.0
MAX_STRANGERS: Final = 1000
"""Clients of one address that may be there at once and have not said yet who they are."""


class Sessions:
    """The sessions that are open."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._sessions: dict[Session, None] = {}
        self._streams: dict[str, Session] = {}
        """The sessions whose commands come as requests, by the name that only their clients know."""
        self._strangers: dict[str, set[Session]] = {}
        """Those that began without a credential, by the address of the client."""
        self._stopping = False

    def __repr__(self) -> str:
        return f"Sessions({len(self._sessions)})"

    def admit(self, principal: Principal, scope: Scope) -> str:
        """The address of the client. Raises `rate_limited` if too many of it have not said yet who they
        are."""
        address = self._parts.principals.refusals.address_of(scope)
        if principal.is_stranger and len(there := self._strangers.get(address, set())) >= MAX_STRANGERS:
            there -= {session for session in there if session.connected}
            if len(there) >= MAX_STRANGERS:
                detail = "too many connections of this address have not sent a credential yet"
                raise GaplessError(Code.RATE_LIMITED, detail, retry_after=1)
        return address

    def open(
        self,
        connection: WebSocketConnection | AsgiWebSocket,
        principal: Principal,
        address: str,
        framing: Framing = FRAMES,
        *,
        subprotocol: str | None = None,
    ) -> None:
        """Begin a session on a connection. In a subprotocol that is not read, it ends at once."""
        session = Session(connection, framing, self._parts, principal, self._forget, address=address)
        self._begin(session, principal)
        connection.begin(session)
        session.begun()
        if subprotocol == PROTOBUF:
            session.close(codes.BAD_COMMAND)

    def open_stream(
        self, connection: StreamConnection, principal: Principal, address: str, framing: Framing
    ) -> Session:
        """Begin a session on a streamed answer. The reply to its connect tells where to send commands."""
        name = secrets.token_urlsafe(16)

        def forget(session: Session) -> None:
            self._streams.pop(name, None)
            self._forget(session)

        greeting = {"session": name, "node": self._parts.exchange.node}
        session = Session(connection, framing, self._parts, principal, forget, greeting, address=address)
        self._begin(session, principal)
        self._streams[name] = session
        connection.begin(session)
        session.begun()
        if self._stopping:
            asyncio.get_running_loop().call_soon(session.stop)
        return session

    def stop(self) -> None:
        """The server stops: end all sessions, also those that still come. Commands that are under way are
        answered first."""
        self._stopping = True
        for session in list(self._sessions):
            session.stop()

    def received(self, name: str, commands: bytes) -> None:
        """Commands that came as a request, to this process or another one."""
        session = self._streams.get(name)
        if session is not None:
            session.received(commands)

    def _begin(self, session: Session, principal: Principal) -> None:
        self._sessions[session] = None
        if principal.is_stranger:
            self._strangers.setdefault(session.address, set()).add(session)

    def _forget(self, session: Session) -> None:
        self._sessions.pop(session, None)
        there = self._strangers.get(session.address)
        if there is not None:
            there.discard(session)
            if not there:
                del self._strangers[session.address]

    async def run(self) -> None:
        """End sessions that do not connect, and those that do not answer pings, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            now = time.monotonic()
            for session in list(self._sessions):
                if not session.connected:
                    if now - session.began_at > CONNECT_S - CHECK_S:
                        session.close(codes.STALE)
                elif not session.ponged and now - session.pinged_at > PONG_S:
                    session.close(codes.NO_PONG)
                elif session.ponged and now - session.pinged_at > PING_S - CHECK_S:
                    session.ping(now)


async def websocket(request: Plain, sessions: Sessions) -> Answer | None:
    """Open a WebSocket that speaks the Centrifugo client protocol in its JSON form."""
    http = request.connection
    headers = request.scope["headers"]
    upgrades = isinstance(http, GaplessHttpProtocol) and http.offers_websocket
    if upgrades:
        headers = [*headers, (b"upgrade", b"websocket")]
    response = accept(request.scope["path"], headers, SUBPROTOCOLS)
    if response.status_code != 101:
        why = response.body.decode().split("\n")[0].removeprefix("Failed to open a WebSocket connection: ")
        error = GaplessError(Code.INVALID_REQUEST, f"no WebSocket: {why}", status=response.status_code)
        status, refused, body = problem.render(error)
        extra = [(b"sec-websocket-version", b"13"), *([(b"upgrade", b"websocket")] if status == 426 else [])]
        kept = [(name, value) for name, value in refused if name not in (b"content-type", b"content-length")]
        return Answer(body, status, (*kept, *extra), b"application/problem+json")
    assert isinstance(http, GaplessHttpProtocol), "no other connection offers one"
    address = sessions.admit(request.principal, request.scope)
    response.headers["X-Request-Id"] = request.id.decode()
    REQUESTS.labels("websocket", 101).inc()
    chosen = response.headers.get("Sec-WebSocket-Protocol")
    connection = http.hand_over(response.serialize())
    sessions.open(connection, request.principal, address, subprotocol=chosen)
    return None
