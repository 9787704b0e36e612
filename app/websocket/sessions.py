"""All WebSocket sessions of a process. The route opens them; a loop asks whether they are still there."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from app import problem
from app.request import Answer, Plain
from app.telemetry import REQUESTS
from app.websocket import codes
from app.websocket.session import CONNECT_S, PING_S, PONG_S, Parts, Session
from app.websocket_protocol import WebSocketConnection, accept
from subscriptions.domain.errors import Code, GaplessError

SUBPROTOCOL: Final = "centrifuge-json"
LOOK_S: Final = 1.0


class Sessions:
    """The sessions that are open."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._sessions: dict[Session, None] = {}

    def __repr__(self) -> str:
        return f"Sessions({len(self._sessions)})"

    def open(self, connection: WebSocketConnection) -> None:
        """Begin a session on a connection."""
        session = Session(connection, self._parts, self._forget)
        self._sessions[session] = None
        connection.begin(session)

    def _forget(self, session: Session) -> None:
        self._sessions.pop(session, None)

    async def run(self) -> None:
        """End sessions that do not connect, and those that do not answer pings, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            for session in list(self._sessions):
                if not session.connected:
                    if now - session.began_at > CONNECT_S - LOOK_S:
                        session.close(codes.STALE)
                elif not session.ponged and now - session.pinged_at > PONG_S:
                    session.close(codes.NO_PONG)
                elif session.ponged and now - session.pinged_at > PING_S - LOOK_S:
                    session.ping(now)


async def websocket(request: Plain, sessions: Sessions) -> Answer | None:
    """Open a WebSocket that speaks the Centrifugo client protocol in its JSON form."""
    http = request.connection
    headers = request.scope["headers"]
    if http.offers_websocket:
        headers = [*headers, (b"upgrade", b"websocket")]
    response = accept(request.scope["path"], headers, SUBPROTOCOL)
    if response.status_code != 101:
        why = response.body.decode().split("\n")[0].removeprefix("Failed to open a WebSocket connection: ")
        error = GaplessError(Code.INVALID_REQUEST, f"no WebSocket: {why}", status=response.status_code)
        status, refused, body = problem.render(error)
        extra = [(b"upgrade", b"websocket"), (b"sec-websocket-version", b"13")] if status == 426 else []
        kept = [(name, value) for name, value in refused if name not in (b"content-type", b"content-length")]
        return Answer(body, status, (*kept, *extra), b"application/problem+json")
    response.headers["X-Request-Id"] = request.id.decode()
    REQUESTS.labels("websocket", 101).inc()
    sessions.open(http.hand_over(response.serialize()))
    return None
