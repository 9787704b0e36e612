"""How lines of the client protocol are sent: in WebSocket frames, or in the streamed answer of a request.

Source of the two streams: the HTTP streaming and SSE transports of the official JavaScript client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from app.http.websocket import text_frame


class Framing(NamedTuple):
    """`frame` takes lines without the last line break."""

    name: str
    frame: Callable[[bytes], bytes]

    def wire(self, subscription: str = "") -> str:
        """The name of a wire: what is written under one name must be the same bytes. A `subscription` has its
        own name in what is written; no name that a client chose can hold the separator."""
        return f"{self.name}\0{subscription}" if subscription else self.name


def _event(lines: bytes) -> bytes:
    """An event without a name. A browser joins its lines again."""
    return b"data: %b\n\n" % lines.replace(b"\n", b"\ndata: ")


FRAMES: Final = Framing("ws", text_frame)
LINES: Final = Framing("ws lines", lambda lines: lines + b"\n")
EVENTS: Final = Framing("ws events", _event)
