"""Consuming a durable subscription on threads."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from gapless._consuming import Consumption
from gapless._delivery import Settled, reason_of
from gapless._errors import GaplessError, LeaseLost
from gapless._in_hand import InHand
from gapless._leases import Lease
from gapless._sync_member import SIGNAL_S, SyncMember

log = logging.getLogger("gapless")


class SyncDelivery(InHand):
    """One message in hand, leased to this consumer: used as a block, or settled by hand.

    In `with`, its lease is extended until the end of the block. There the message is acked, or, when
    the block raises, nacked with the exception as the reason, which then goes on its way; a block that is
    broken off from outside gives the message back without waiting for that. What was settled by hand is left
    alone.

    `lost` says that the message is or will be handed out again: the lease ended, or the stream that gave it.
    That is logged, and raised as `LeaseLost` at the end of the block where `raise_lost` asks for it; an ack
    is tried all the same, and its answer has the last word.
    """

    def __init__(self, lease: Lease, consumer: SyncConsumer) -> None:
        super().__init__(lease)
        # The stream, and with it the lease, lives as long as somebody holds the delivery.
        self._consumer = consumer

    def ack(self) -> Settled:
        """Settles the message for good. The status tells: `acked`; `lease_expired`: it will come again;
        `unknown`: it was settled before, or a seek forgot it."""
        return self._consumer._member.ack(self._lease)

    def nack(
        self, *, delay: float | None = None, dead_letter: bool = False, reason: str | None = None
    ) -> Settled:
        """Gives the message back, to come again after `delay` seconds, else as the backoff says; as a
        `dead_letter` it does not come again. `reason` stands in the dead letter that comes of it at last."""
        return self._consumer._member.nack(self._lease, delay, dead_letter, reason)

    def extend(self, ack_wait: float | None = None) -> Settled:
        """Moves the deadline to `ack_wait` seconds from now, else as the subscription has it."""
        return self._consumer._member.extend(self._lease, ack_wait)

    def __enter__(self) -> Self:
        self._consumer._member.keep(self._lease)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._finish()
        elif isinstance(error, Exception):
            self._give_back(error)
        elif not self._lease.settled:
            self._consumer._member.abandon(self._lease, reason_of(error))

    def _settle_elsewhere(self) -> None:
        """A transaction acked it."""
        self._consumer._member.leases.settle(self._lease)

    def _finish(self) -> None:
        cause: GaplessError | None = None
        if not self._lease.settled:
            try:
                self.ack()
            except GaplessError as error:
                if not error.retryable:
                    raise
                cause = error
                self._consumer._member.leases.lose(self._lease, f"it could not be acked: {error}")
        if self._consumer._asked.raise_lost:
            self._raise_lost(cause)

    def _give_back(self, error: Exception) -> None:
        """After a failure. That the service cannot be told must not hide it."""
        if self._lease.settled:
            return
        try:
            self.nack(reason=reason_of(error))
        except Exception as trouble:  # noqa: BLE001 (what went wrong first is what the caller has to see)
            self._consumer._member.leases.lose(self._lease, f"it could not be nacked: {trouble}")


SyncHandler = Callable[[SyncDelivery], object]
"""What `work` calls with each delivery."""


class SyncConsumer:
    """An iterator over the deliveries of a subscription, whose stream outlives its connections.

    It reads ahead up to `prefetch` and keeps those leases alive until they are handed out. With a lost
    connection its leases end, and their messages come again. Several threads may iterate over one consumer.
    `with` opens it and ends it: what is being settled is waited for, all other leases end at once. One
    that nobody holds any more is ended too. Giving up a wait for the next delivery loses nothing.
    """

    def __init__(self, member: SyncMember, asked: Consumption, patience_seconds: float) -> None:
        self._member = member
        self._asked = asked
        self._patience_seconds = patience_seconds

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._asked.subscription} {self._member.state}>"

    def __del__(self) -> None:
        # Threads that the end of the interpreter froze keep their locks for ever: nobody may wait for one.
        if not sys.is_finalizing():
            self._member.forsake()

    def __enter__(self) -> Self:
        try:
            self._member.opened()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> SyncDelivery:
        lease = self._member.take()
        if lease is None:
            raise StopIteration
        return SyncDelivery(lease, self)

    def work(self, handler: SyncHandler, *, concurrency: int = 1) -> None:
        """Calls the handler with each delivery, `concurrency` at a time, as within its block.

        Where the handler raises, that is logged, the message nacked, and work goes on. It ends with `stop`,
        after the handlers under way, or with an error that no patience mends, such as `NotFound`. Cancelled,
        it cancels the handlers and gives their messages back; handlers on threads, which nobody can cancel,
        come to their end first, unless it is broken off a second time.
        """
        if concurrency < 1:
            raise ValueError("somebody has to do the work")
        crew = _Crew()
        name = f"gapless {self._asked.subscription} worker"
        try:
            for _ in range(concurrency):
                work = (self._work, handler)
                threading.Thread(target=crew.run, args=work, name=name, daemon=True).start()
            crew.wait_for(lambda: crew.ended == concurrency)
        except BaseException:
            self.stop()
            crew.wait_for(lambda: crew.busy == 0)
            raise
        if crew.failures:
            raise crew.failures[0]

    def stop(self) -> None:
        """Hands out nothing more, which ends every iteration; what was handed out may still be settled.

        What was read ahead stays with this consumer until it is closed, which should be soon.
        """
        self._member.stop()

    def close(self) -> None:
        """Ends the stream, after what is being settled; the leases of all else end. Twice is harmless."""
        self._member.close(self._patience_seconds)

    def _work(self, handler: SyncHandler, crew: _Crew) -> None:
        try:
            for delivery in self:
                # A lost lease is logged, and there is nobody here to raise it to.
                with suppress(LeaseLost), delivery:
                    self._attempt(handler, delivery)
        except BaseException as error:  # noqa: BLE001 (it is raised where `work` was called)
            crew.failures.append(error)
            self.stop()

    def _attempt(self, handler: SyncHandler, delivery: SyncDelivery) -> None:
        try:
            handler(delivery)
        except Exception as error:
            log.warning("handler failed with %r", delivery, exc_info=error)
            delivery._give_back(error)
            self._member.leases.settle(delivery._lease)


class _Crew:
    """How many threads work. Never joined: once Ctrl-C broke that off, Python 3.11 takes them for ended.

    Nor are those counted that were not begun when Ctrl-C came: they find the consumer stopped.
    """

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.busy = 0
        self.ended = 0
        self._changed = threading.Condition()

    def run(self, work: Callable[..., None], *arguments: object) -> None:
        """Counts the work of this thread."""
        with self._changed:
            self.busy += 1
        try:
            work(*arguments, self)
        finally:
            with self._changed:
                self.busy -= 1
                self.ended += 1
                self._changed.notify_all()

    def wait_for(self, true: Callable[[], bool]) -> None:
        """Returns once it is true."""
        with self._changed:
            while not self._changed.wait_for(true, SIGNAL_S):
                pass
