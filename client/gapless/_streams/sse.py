"""A Server-Sent Events parser that follows the WHATWG specification exactly.

It works on bytes as they arrive, in pieces of any size. The usual library has two faults: it gives an extra
event for a block that has only `retry:`, and it has no limit on the length of a line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gapless._errors import ProtocolError

MAX_EVENT_BYTES = 32 * 1024 * 1024
"""The longest event accepted: several times a message of 1 MiB with every character escaped."""

_BOM = b"\xef\xbb\xbf"
_LINE_END = re.compile(rb"\r\n|\r|\n")
_DIGITS = re.compile(r"[0-9]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One dispatched event. `type` is `message` unless the block named another; `id` is the last id seen."""

    type: str
    data: str
    id: str


class LineSplitter:
    """Cuts arriving bytes into lines that end with CR, LF or CRLF. A CRLF cut in two still ends one line."""

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines completed by `chunk`, without their ends. Raises `ProtocolError` past the limit."""
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        first, *rest = _LINE_END.split(chunk) if b"\r" in chunk else chunk.split(b"\n")
        self._keep(first)
        if not rest:
            return []
        lines = [b"".join(self._pieces), *rest[:-1]]
        self._pieces, self._pieces_bytes = [], 0
        self._keep(rest[-1])
        return lines

    def rest(self) -> bytes:
        """The bytes after the last line end."""
        return b"".join(self._pieces)

    def _keep(self, piece: bytes) -> None:
        self._pieces_bytes += len(piece)
        if self._pieces_bytes > self._max_line_bytes:
            raise ProtocolError(f"the server sent a line of more than {self._max_line_bytes} bytes")
        if piece:
            self._pieces.append(piece)


class SSEParser:
    """Turns the bytes of one response into events. A new connection needs a new parser.

    `retry_ms` is the reconnection time the server last asked for, in milliseconds, or None.
    """

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.retry_ms: int | None = None
        self._lines = LineSplitter(max_event_bytes)
        self._max_event_bytes = max_event_bytes
        self._at_start = True
        self._type = ""
        self._id = ""
        self._data: list[str] = []
        self._data_bytes = 0

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events completed by `chunk`. Raises `ProtocolError` when one grows past the limit."""
        events: list[ServerEvent] = []
        for line in self._lines.feed(chunk):
            if self._at_start:
                line = line.removeprefix(_BOM)
                self._at_start = False
            if line:
                self._field(line)
            elif (event := self._dispatch()) is not None:
                events.append(event)
        return events

    def _field(self, line: bytes) -> None:
        name, _, value = line.decode("utf-8", "replace").partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data_bytes += len(line)
                if self._data_bytes > self._max_event_bytes:
                    raise ProtocolError(
                        f"the server sent an event of more than {self._max_event_bytes} bytes"
                    )
                self._data.append(value)
            case "event":
                self._type = value
            case "id" if "\0" not in value:
                self._id = value
            case "retry" if _DIGITS.fullmatch(value) and len(value) <= 12:
                self.retry_ms = int(value)
            case _:
                pass  # A comment (its name is empty) or a field of a later version: both are ignored.

    def _dispatch(self) -> ServerEvent | None:
        """The event of the block that a blank line ended. A block without `data:` is not an event."""
        event = ServerEvent(self._type or "message", "\n".join(self._data), self._id) if self._data else None
        self._type, self._data, self._data_bytes = "", [], 0
        return event
