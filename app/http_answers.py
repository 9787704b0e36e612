"""Sends whole answers in one write."""

from __future__ import annotations

from typing import Final

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.http_parts import Cycle
from app.problem import Headers

_CLOSE: Final = (b"connection", b"close")


async def answer(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a whole answer. On a connection of this server it is one write; ASGI's two messages would be two.
    For a short answer the write is most of the work. `headers` must hold the content length."""
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


def _takes_one_write(cycle: Cycle) -> bool:
    """Whether this is the ordinary case. The base class handles all others."""
    if cycle.response_started or cycle.disconnected or not cycle.keep_alive:
        return False
    return _CLOSE not in cycle.default_headers and not cycle.flow.write_paused
