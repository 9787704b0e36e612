"""The client protocol without WebSocket: the server's half is a streamed answer, the client's half requests.

Where a WebSocket cannot be opened, the official JavaScript client asks for such a stream, and posts its
commands one request each. They may arrive at another process than the one that holds the stream.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from app.faces.sse import frames
from app.faces.websocket.commands import MAX_COMMAND_ID, ConnectRequest
from app.faces.websocket.framing import EVENTS, LINES, Framing
from app.faces.websocket.sessions import Sessions
from app.faces.websocket.stream_connection import StreamConnection
from app.http.body import read_json
from app.http.request import NO_CONTENT, Answer, Plain, Request
from app.http.websocket import MAX_MESSAGE_BYTES
from app.message.limits import within
from app.message.refusals import FAILURES, refuse
from app.metrics.registry import REQUESTS
from subscriptions.domain.errors import Code, GaplessError, invalid
from subscriptions.engine.exchange import Exchange

_LINES: Final = [(b"content-type", b"application/x-ndjson"), *frames.HEADERS[1:]]


class EmulatedConnectQuery(msgspec.Struct):
    """The first command of a client that cannot open a WebSocket."""

    cf_connect: Annotated[
        str,
        Meta(
            description="The command `connect`, as JSON.", max_length=8192, examples=['{"id":1,"connect":{}}']
        ),
    ]


class FirstCommand(msgspec.Struct, forbid_unknown_fields=True):
    """The command with which a stream begins."""

    id: Annotated[int, Meta(ge=1, le=MAX_COMMAND_ID)]
    connect: ConnectRequest


class EmulationRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Commands of a client, one on each line. `session` and `node` are those of the reply to its connect."""

    session: Annotated[str, Meta(max_length=64)]
    node: Annotated[str, Meta(pattern="^[0-9a-f]{16}$", max_length=16)]
    data: Annotated[str, Meta(max_length=MAX_MESSAGE_BYTES)]


_decode_first: Final = msgspec.json.Decoder(FirstCommand).decode
_decode_commands: Final = msgspec.json.Decoder(EmulationRequest).decode


async def connect_http_stream(request: Plain, sessions: Sessions) -> None:
    """Open a stream of replies and pushes, one on each line. The body is the first command, which connects.
    Later commands go to `emulation`."""
    command = await read_json(request)
    _read_first(command)
    await _stream(request, sessions, command, LINES, _LINES)


async def connect_sse(request: Request[EmulatedConnectQuery], sessions: Sessions) -> None:
    """Open a stream of replies and pushes as server-sent events. `cf_connect` is the first command, which
    connects. Later commands go to `emulation`."""
    command = request.query.cf_connect.encode()
    try:
        first = _read_first(command)
    except GaplessError as error:
        raise within(error, "cf_connect") from None
    if first.connect.token or any(sub.token for sub in first.connect.subs.values()):
        raise invalid("cf_connect", "must not hold a token, since URLs are logged; post it instead")
    await _stream(request, sessions, command, EVENTS, frames.HEADERS)


async def emulation(request: Plain, exchange: Exchange) -> Answer:
    """Carry out commands of a client whose replies are streamed. The answer does not wait for the replies. A
    session that is gone from a running process is no error: its stream ends."""
    # Only the commands are held while they wait, not the body too.
    node, session, commands = _read_commands(await read_json(request, MAX_MESSAGE_BYTES))
    if not await exchange.forward(node, session, commands):
        raise GaplessError(Code.NOT_FOUND, "the process of this session is gone; connect again")
    return NO_CONTENT


def _read_commands(body: bytes) -> tuple[str, str, bytes]:
    """The node, the session, and the commands for it. Raises `malformed_json` or `invalid_request`."""
    try:
        asked = _decode_commands(body)
        return asked.node, asked.session, asked.data.encode()
    except FAILURES as error:
        refuse(body, error)


def _read_first(command: bytes) -> FirstCommand:
    """Raises `malformed_json` or `invalid_request`."""
    try:
        return _decode_first(command)
    except FAILURES as error:
        refuse(command, error)


async def _stream(
    request: Request[Any],
    sessions: Sessions,
    command: bytes,
    framing: Framing,
    headers: list[tuple[bytes, bytes]],
) -> None:
    send = request.send
    address = sessions.admit(request.principal, request.scope)
    started = [*headers, (b"x-request-id", request.id)]
    if request.scope["method"] == "HEAD":
        await send({"type": "http.response.start", "status": 200, "headers": started})
        await send({"type": "http.response.body", "body": b""})
        return
    await send({"type": "http.response.start", "status": 200, "headers": started})
    await send({"type": "http.response.body", "body": b"", "more_body": True})
    connection = StreamConnection(request.connection, framing)
    REQUESTS.labels("websocket", 200).inc()
    sessions.open_stream(connection, request.principal, address, framing).received(
        command.replace(b"\n", b" ")
    )
    await connection.ended.wait()
    await connection.taken()
    await send({"type": "http.response.body", "body": b"", "more_body": False})
