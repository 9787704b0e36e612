"""The streamed answer of a request as a connection of the client protocol."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from app.faces.websocket import codes
from app.faces.websocket.framing import Framing
from app.http.request import Connection
from app.http.websocket import MAX_WAITING_BYTES


class Dropped(Protocol):
    """What a connection tells of its end."""

    def dropped(self) -> None: ...


class StreamConnection:
    """A streamed answer, as a session uses it. Its end is written by whoever waits for `ended`."""

    __slots__ = ("_framing", "_http", "_session", "ended")

    def __init__(self, http: Connection, framing: Framing) -> None:
        self.ended = asyncio.Event()
        self._http = http
        self._framing = framing
        self._session: Dropped | None = None
        http.goodbye = self._disconnect(*codes.SLOW)
        http.on_lost = self._end
        if http.is_closing:
            self._end()

    def __repr__(self) -> str:
        return f"StreamConnection({'closing' if self.is_closing else 'open'})"

    @property
    def is_closing(self) -> bool:
        """Whether it is gone, or is being closed."""
        return self.ended.is_set()

    def begin(self, session: Dropped) -> None:
        """Tell this session of its end from here on."""
        self._session = session
        if self.is_closing:
            session.dropped()

    def write(self, data: bytes) -> None:
        """Writes lines, behind those that wait to be taken. Commands come over other connections, so a client
        that reads nothing could let replies pile up; it is cut off."""
        if self._http.write_buffer_size() > MAX_WAITING_BYTES:
            self._http.cut_off()
        if not self.is_closing:
            self._http.write(data)

    def write_chunk(self, data: bytes) -> bool:
        """Writes lines at once and returns True. If bytes still wait here, it only returns False."""
        return not self.is_closing and self._http.write_chunk(data)

    def queue(self, size_bytes: int) -> None:
        """Counts so many bytes more (or fewer) that wait to be written."""
        self._http.queue(size_bytes)

    async def taken(self) -> None:
        """Returns once the client has taken all that was written, or is gone."""
        await self._http.taken()

    def close(self, code: int, reason: str) -> None:
        """Tells the client the code and the reason, and ends the stream."""
        self.write(self._disconnect(code, reason))
        self._end()

    def _disconnect(self, code: int, reason: str) -> bytes:
        said = msgspec.json.encode({"push": {"disconnect": {"code": code, "reason": reason}}})
        return self._framing.frame(said)

    def _end(self) -> None:
        if not self.is_closing:
            self.ended.set()
            self._http.on_lost = self._http.goodbye = None
            if self._session is not None:
                self._session.dropped()
