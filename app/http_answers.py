"""Whole answers in one write, for the hot faces."""

from __future__ import annotations

from typing import Final

from starlette.types import Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.http_parts import Cycle
from app.problem import Headers

_CLOSE: Final = (b"connection", b"close")


async def answer(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a whole answer. On a connection of this server that is one write, where ASGI's two messages would
    be two: for a short answer the write is most of the work. `headers` hold the content length."""
    cycle = getattr(send, "__self__", None)
    if isinstance(cycle, Cycle) and _takes_one_write(cycle):
        lines = [STATUS_LINE[status]]
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        for name, value in cycle.default_headers:
            lines += (name, b": ", value, b"\r\n")
        lines += (b"\r\n", body)
        cycle.response_started = cycle.response_complete = True
        cycle.flow.written_bytes = len(body)
        cycle.transport.write(b"".join(lines))
        cycle.message_event.set()
        cycle.on_response()
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def answer_json(
    scope: Scope, send: Send, status: int, content: bytes, *, replayed: bool = False
) -> None:
    """Send JSON as a whole answer. `replayed`: it is that of an earlier request with the same key."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(content)),
        (b"x-request-id", scope["state"]["request_id"]),
    ]
    if replayed:
        headers.append((b"idempotent-replayed", b"true"))
    await answer(send, status, headers, content)


def _takes_one_write(cycle: Cycle) -> bool:
    """Whether nothing out of the ordinary is to be said or waited for: the base class knows all of that."""
    if cycle.response_started or cycle.disconnected or not cycle.keep_alive:
        return False
    return _CLOSE not in cycle.default_headers and not cycle.flow.write_paused
