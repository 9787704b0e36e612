"""How lines of the client protocol are sent: in WebSocket frames, or in the streamed answer of a request.

Source of the two streams: the HTTP streaming and SSE transports of the official JavaScript client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from app.websocket_protocol import text_frame


class Framing(NamedTuple):
    """`frame` takes lines without the last line break. Feeds encode a message once for each `name`."""

    name: str
    frame: Callable[[bytes], bytes]


def _event(lines: bytes) -> bytes:
    """An event without a name. A browser joins its lines again."""
    return b"data: %b\n\n" % lines.replace(b"\n", b"\ndata: ")


FRAMES: Final = Framing("ws", text_frame)
LINES: Final = Framing("ws lines", lambda lines: lines + b"\n")
EVENTS: Final = Framing("ws events", _event)
