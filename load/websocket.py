"""A WebSocket client for load and tests: it reads whole text messages, and writes unsplit ones (RFC 6455).

It shares no code with the client or the server, because a check of the service must not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable

from load.wire import BodyStream, Target

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
_TEXT, _CLOSE = 0x81, 0x88


def handshake(target: Target, path: str) -> bytes:
    """The request that opens a WebSocket."""
    headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    return target.request("GET", path, headers={**headers, "Sec-WebSocket-Key": KEY})


def masked(text: bytes, kind: int = _TEXT) -> bytes:
    """A text message as a client sends it; `kind`: the first byte of another frame. Its mask is zero, so the
    text stays as it is."""
    size = len(text)
    if size < 126:
        length = bytes((0x80 | size,))
    elif size < 1 << 16:
        length = bytes((0x80 | 126,)) + size.to_bytes(2, "big")
    else:
        length = bytes((0x80 | 127,)) + size.to_bytes(8, "big")
    return bytes((kind,)) + length + bytes(4) + text


class Messages:
    """Cuts what a server sends into whole messages. Servers do not mask, and this one does not split."""

    __slots__ = ("_rest", "closed")

    def __init__(self) -> None:
        self._rest = b""
        self.closed = False

    def feed(self, data: bytes) -> list[bytes]:
        """The text messages that `data` completes."""
        data = self._rest + data if self._rest else data
        found, at, end = [], 0, len(data)
        while at + 2 <= end:
            kind, size, head = data[at], data[at + 1], at + 2
            if size == 126:
                size, head = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
            elif size == 127:
                size, head = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
            if head + size > end:
                break
            if kind == _TEXT:
                found.append(data[head : head + size])
            self.closed |= kind == _CLOSE
            at = head + size
        self._rest = data[at:]
        return found


class Stream(BodyStream):
    """One connection. `on_lines` gets the lines of the messages of each read."""

    def __init__(
        self,
        request: bytes,
        on_open: Callable[[int, bytes], None],
        on_lines: Callable[[list[bytes]], None],
        on_close: Callable[[], None],
    ) -> None:
        super().__init__(request, on_open, on_close)
        self._on_lines = on_lines
        self._messages = Messages()

    def _read(self, data: bytes) -> None:
        lines = [line for message in self._messages.feed(data) for line in message.split(b"\n")]
        if lines:
            self._on_lines(lines)
        if self._messages.closed:
            self.abort()

    def send(self, text: bytes) -> None:
        """Send a short message, if the connection is open."""
        if self.transport is not None:
            self.transport.write(masked(text))
