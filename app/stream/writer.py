"""Writes a stream to a client that may be slow, and tells when it is too slow."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.types import Send

from app.http_protocol import GaplessHttpProtocol
from app.telemetry import CUT_OFF

LINGER_S: Final = 5.0
"""A reader that was too slow has so long to take what was already written to it."""


class StreamWriter:
    """`timeout_s`: how long a client may take nothing; then it is sent `goodbye` and cut off."""

    __slots__ = ("_connection", "_goodbye", "_send", "_timeout_s")

    def __init__(self, connection: GaplessHttpProtocol, send: Send, timeout_s: float, goodbye: bytes) -> None:
        self._connection = connection
        self._send = send
        self._timeout_s = timeout_s
        self._goodbye = goodbye

    async def write(self, data: bytes) -> None:
        """Raises ConnectionResetError when the client is gone or cut off."""
        message = {"type": "http.response.body", "body": data, "more_body": True}
        if self._connection.write_buffer_size() == 0:
            await self._send(message)
            return
        await self._write_slowly(message)

    async def end(self) -> None:
        """The last of it was written."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write_slowly(self, message: dict[str, object]) -> None:
        """Wait for a reader that is behind, as long as it takes something every few seconds."""
        writing = asyncio.ensure_future(self._send(message))
        try:
            left = self._connection.write_buffer_size()
            while True:
                done, _ = await asyncio.wait({writing}, timeout=self._timeout_s)
                if done:
                    writing.result()
                    return
                now_left = self._connection.write_buffer_size()
                if now_left >= left:
                    CUT_OFF.labels("slow_consumer").inc()
                    self._connection.write_last(self._goodbye, LINGER_S)
                    raise ConnectionResetError
                left = now_left
        finally:
            writing.cancel()
