"""What every connection does with bytes that its client does not take: they count, and for a limited time."""

from __future__ import annotations

import asyncio

from app.connections import Shared, unacknowledged_bytes
from app.http_parts import Flow
from app.telemetry import CUT_OFF


class Unread:
    """The writing half of a connection. A client that takes nothing for `slow_reader_s` is cut off."""

    __slots__ = ("_untaken",)

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    flow: Flow
    slow_reader_s: float
    _shared: Shared
    _untaken: int
    """Bytes that were written and not taken, when last looked at."""

    def abort(self) -> None:
        """Closes at once and drops buffered bytes."""
        self.transport.abort()

    def write_buffer_size(self) -> int:
        """Bytes written and not yet taken by the kernel."""
        return self.transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        self.flow.pause_writing()
        self._untaken = self._untaken_bytes()
        self._shared.readers.expect(self, self.loop.time() + self.slow_reader_s)
        held_bytes = max(self.transport.get_write_buffer_size(), self.flow.written_bytes)
        self._shared.budget.hold(self, held_bytes + self._received_bytes())

    def resume_writing(self) -> None:
        self._shared.readers.drop(self)
        self._shared.budget.release(self)
        self.flow.resume_writing()

    def not_taken(self, now: float) -> None:
        """The client took nothing of its bytes for `slow_reader_s`; `now` is loop time."""
        left = self._untaken_bytes()
        if left < self._untaken:
            self._untaken = left
            self._shared.readers.expect(self, now + self.slow_reader_s)
            return
        self._shared.readers.drop(self)
        CUT_OFF.labels("slow_consumer").inc()
        self.cut_off()

    def cut_off(self) -> None:
        """Ends a connection whose client is too slow."""
        raise NotImplementedError

    def timed_out(self, now: float) -> None:
        """Its client sent nothing, or too little, for too long; `now` is loop time."""
        raise NotImplementedError

    def give_way(self) -> None:
        """The bytes of this connection are needed: it has held bytes for the longest time."""
        CUT_OFF.labels("buffers_full").inc()
        self.abort()

    def _write_shared(self, data: bytes) -> None:
        """Writes bytes that other connections write too: they count once."""
        self.transport.write(data)
        if self.flow.write_paused:
            self._shared.budget.hold(self, self._received_bytes(), data)

    def _received_bytes(self) -> int:
        """Bytes of the client that are held beside those for it."""
        return 0

    def _untaken_bytes(self) -> int:
        socket = self.transport.get_extra_info("socket")
        return self.transport.get_write_buffer_size() + unacknowledged_bytes(socket.fileno())
