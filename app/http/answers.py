"""Sends whole answers in one write."""

from __future__ import annotations

from typing import Final

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.http.cycle import Cycle
from app.http.problem import Headers

_CLOSE: Final = (b"connection", b"close")


class _Defaults:
    """The headers of every answer as text, made once for each list of them. uvicorn changes no such list; it
    makes a new one."""

    def __init__(self) -> None:
        self._headers: Headers = []
        self.text = b""
        self.close = False

    def of(self, headers: Headers) -> _Defaults:
        if headers is not self._headers:
            self.text = b"".join([b"%b: %b\r\n" % header for header in headers])
            self.close = _CLOSE in headers
            self._headers = headers
        return self


_defaults: Final = _Defaults()


async def answer(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a whole answer. On a connection of this server it is one write; ASGI's two messages would be two.
    For a short answer the write is most of the work. `headers` must hold the content length."""
    cycle = getattr(send, "__self__", None)
    if isinstance(cycle, Cycle) and _takes_one_write(cycle):
        lines = [STATUS_LINE[status]]
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        lines += (_defaults.of(cycle.default_headers).text, b"\r\n", body)
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
    return not cycle.flow.write_paused and not _defaults.of(cycle.default_headers).close
