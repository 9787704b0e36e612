"""What every connection does with bytes that its client does not take: they count, and for a limited time.

Bytes count from the moment at which they wait for this connection alone: deliveries of its members, an answer
behind another one, and what was written. Whatever is built for it is built once the client has taken all that
was written before (`taken`).
"""

from __future__ import annotations

import asyncio

from app.http.connections import Shared, unacknowledged_bytes
from app.http.cycle import Flow
from app.metrics.registry import CUT_OFF


class WritingHalf:
    """The writing half of a connection. A client that takes nothing for `slow_reader_s` is cut off."""

    __slots__ = ("_chunk", "_queued_bytes", "_untaken")

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    flow: Flow
    slow_reader_s: float
    _shared: Shared
    _untaken: int
    """Bytes that were written and not taken, when last looked at."""
    _chunk: bytes | None
    """Written and not taken, and written to other connections too. It was written first."""
    _queued_bytes: int
    """Bytes that wait to be written."""

    def _owe_nothing(self) -> None:
        """The connection begins."""
        self._untaken = self._queued_bytes = 0
        self._chunk = None

    def _owe_no_more(self) -> None:
        """The connection is gone, or goes on as another one."""
        self._shared.senders.drop(self)
        self._shared.readers.drop(self)
        self._shared.budget.release(self)

    @property
    def is_closing(self) -> bool:
        """Whether it is gone, or is being closed."""
        return self.transport.is_closing()

    def abort(self) -> None:
        """Closes at once and drops buffered bytes."""
        self.transport.abort()

    def write_buffer_size(self) -> int:
        """Bytes written and not yet taken by the kernel."""
        return self.transport.get_write_buffer_size()

    def queue(self, size_bytes: int) -> None:
        """Counts so many bytes more (or fewer) that wait to be written."""
        self._queued_bytes += size_bytes
        self._count()

    async def taken(self) -> None:
        """Returns once the client has taken all that was written, or is gone."""
        # Others may have waited too, and have written first.
        while self.flow.write_paused and not self.transport.is_closing():
            await self.flow.drain()

    def pause_writing(self) -> None:
        self.flow.pause_writing()
        self._untaken = self._untaken_bytes()
        self._shared.readers.expect(self, self.loop.time() + self.slow_reader_s)
        if self._chunk is None:
            self.flow.written_bytes = max(self.flow.written_bytes, self.transport.get_write_buffer_size())
        else:
            self.flow.written_bytes = 0
        self._count()

    def resume_writing(self) -> None:
        self._shared.readers.drop(self)
        self._chunk = None
        self.flow.resume_writing()
        self._count_anew()

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

    def _write(self, data: bytes) -> None:
        """Writes bytes that are this connection's alone, behind those that wait."""
        flow = self.flow
        if not flow.write_paused:
            flow.written_bytes = len(data)
            self.transport.write(data)
            if self._queued_bytes and not flow.write_paused:
                self._count_anew()
            return
        # The transport holds what it writes until the last byte of it is taken.
        waiting_bytes = min(flow.written_bytes, self.transport.get_write_buffer_size())
        flow.written_bytes = waiting_bytes + len(data)
        self.transport.write(data)
        self._count()

    def _write_shared(self, data: bytes) -> None:
        """Writes bytes that other connections write too, where none wait: they count once."""
        self._chunk = data
        self.transport.write(data)
        if not self.flow.write_paused:
            self._chunk = None

    def _count(self) -> None:
        """Holds all bytes of this connection."""
        if self.transport.is_closing():
            return
        held_bytes = self._received_bytes() + self._queued_bytes
        if self.flow.write_paused:
            held_bytes += self.flow.written_bytes
        else:  # It may be one that is being closed, whose waiters were let go.
            shared_bytes = 0 if self._chunk is None else len(self._chunk)
            held_bytes += max(0, self.transport.get_write_buffer_size() - shared_bytes)
        if held_bytes or self._chunk is not None:
            self._shared.budget.hold(self, held_bytes, self._chunk)
        else:
            self._shared.budget.release(self)

    def _count_anew(self) -> None:
        """The client has taken all that was written, so it begins to hold what waits now."""
        if not self._received_bytes():
            self._shared.budget.release(self)
        self._count()

    def _received_bytes(self) -> int:
        """Bytes of the client that are held beside those for it."""
        return 0

    def _untaken_bytes(self) -> int:
        socket = self.transport.get_extra_info("socket")
        return self.transport.get_write_buffer_size() + unacknowledged_bytes(socket.fileno())
