"""Consumes a durable subscription on threads."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from gapless._calls.delivery import Settled, reason_of
from gapless._errors import GaplessError, LeaseLost
from gapless._forks import Forkable
from gapless._streams.consuming import Consumption
from gapless._streams.in_hand import InHand
from gapless._streams.leases import Lease
from gapless._sync.member import SIGNAL_S, Member

log = logging.getLogger("gapless")


class Delivery(InHand):
    """One message leased to this consumer. Use it as a block, or settle it by hand.

    `with` extends the lease until the end of the block. At its end the message is acked. If the block
    raises, the message is nacked with the exception as the reason, and the exception is raised on. If the
    block is interrupted, the message is released without waiting for the service: that is neither an
    attempt nor a failure. A message that was settled by hand is left alone.

    `lost` says that the message is or will be handed out again, because the lease or its stream ended. The
    loss is logged. With `raise_lost` it is also raised as `LeaseLost` at the end of the block. The ack is
    tried in any case, and its answer decides.

    Its lease belongs to the process that took it. A forked child may settle it by hand; its block cannot be
    entered there, and a block that was entered before the fork settles nothing there.
    """

    def __init__(self, lease: Lease, consumer: Consumer) -> None:
        super().__init__(lease)
        # This reference keeps the stream, and with it the lease, alive as long as the delivery exists.
        self._consumer = consumer
        self._leases = consumer._member.leases

    def ack(self) -> Settled:
        """Settles the message for good. The result's status is `acked`, `lease_expired` (the message will
        come again), or `unknown` (it was settled before, or a seek forgot it)."""
        return self._consumer._member.ack(self._lease)

    def nack(
        self, *, delay: float | None = None, dead_letter: bool = False, reason: str | None = None
    ) -> Settled:
        """Gives the message back. It comes again after `delay` seconds, by default as the backoff says. As a
        `dead_letter` it does not come again. If it becomes a dead letter, that holds the `reason`."""
        return self._consumer._member.nack(self._lease, delay, dead_letter, reason)

    def release(self, *, delay: float | None = None) -> Settled:
        """Gives the message back without having worked on it. It comes again at once, or after `delay`
        seconds, with the same attempt. The result's status is `released`, `lease_expired` or `unknown`."""
        return self._consumer._member.release(self._lease, delay)

    def extend(self, ack_wait: float | None = None) -> Settled:
        """Moves the deadline to `ack_wait` seconds from now; the default is the subscription's `ack_wait`."""
        return self._consumer._member.extend(self._lease, ack_wait)

    def __enter__(self) -> Self:
        if self._inherited:
            raise RuntimeError("another process took this delivery and extends it: settle it by hand")
        self._consumer._member.keep(self._lease)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._inherited:
            return
        if error is None:
            self._finish()
        elif isinstance(error, Exception):
            self._give_back(error)
        elif not self._lease.settled:
            self._consumer._member.abandon(self._lease)

    @property
    def _inherited(self) -> bool:
        """Whether it was taken before this process was forked."""
        return self._leases is not self._consumer._member.leases

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
        """Gives the message back after a failure. An error of the nack must not hide that failure."""
        if self._lease.settled:
            return
        try:
            self.nack(reason=reason_of(error))
        except Exception as trouble:  # noqa: BLE001 (the caller has to see the first error)
            self._consumer._member.leases.lose(self._lease, f"it could not be nacked: {trouble}")


Handler = Callable[[Delivery], object]
"""What `work` calls with each delivery."""


class Consumer:
    """An iterator over the deliveries of a subscription. It reconnects after a lost connection.

    It reads ahead up to `prefetch` deliveries and keeps their leases alive until they are handed out. When
    the connection is lost, its leases end, and their messages come again. Several threads may iterate over
    one consumer. `with` opens and ends it. At the end it waits for the settling under way and releases what
    it had read ahead; all other leases end at once. A consumer that is garbage collected ends too.
    Interrupting a wait for the next delivery loses nothing. In a forked child it is another member, with
    deliveries of its own.
    """

    def __init__(self, member: Member, asked: Consumption, patience_seconds: float) -> None:
        self._member = member
        self._asked = asked
        self._patience_seconds = patience_seconds

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._asked.subscription} {self._member.state}>"

    def __del__(self) -> None:
        # Threads frozen by the interpreter's exit keep their locks for ever, so nothing may wait for them.
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

    def __next__(self) -> Delivery:
        lease = self._member.take()
        if lease is None:
            raise StopIteration
        return Delivery(lease, self)

    def work(self, handler: Handler, *, concurrency: int = 1) -> None:
        """Calls the handler with each delivery inside the delivery's block, `concurrency` at a time.

        If the handler raises, the error is logged, the message is nacked, and work goes on. Work ends after
        `stop`, when the running handlers have returned, or with an error that a retry does not mend, such as
        `NotFound`. When it is cancelled, it cancels the handlers, and closing releases their messages.
        Handlers on threads cannot be cancelled: they run to their end first, unless work is interrupted a
        second time.
        """
        if concurrency < 1:
            raise ValueError("the concurrency must be at least 1")
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
        """Stops handing out deliveries, which ends every iteration. Deliveries in hand may still be settled.

        Deliveries that were read ahead stay leased until this consumer is closed, which releases them: close
        it soon.
        """
        self._member.stop()

    def close(self) -> None:
        """Ends the stream after the settling under way, and releases what was read ahead and what was
        broken off; all other leases end. Closing twice is harmless."""
        self._member.close(self._patience_seconds)

    def _work(self, handler: Handler, crew: _Crew) -> None:
        try:
            for delivery in self:
                # A lost lease is logged; no caller could catch `LeaseLost` here.
                with suppress(LeaseLost), delivery:
                    self._attempt(handler, delivery)
        except BaseException as error:  # noqa: BLE001 (it is raised where `work` was called)
            crew.failures.append(error)
            self.stop()

    def _attempt(self, handler: Handler, delivery: Delivery) -> None:
        try:
            handler(delivery)
        except Exception as error:
            log.warning("handler failed with %r", delivery, exc_info=error)
            delivery._give_back(error)
            self._member.leases.settle(delivery._lease)


class _Crew(Forkable):
    """Counts the threads that work. They are not joined: after a join that Ctrl-C interrupted, Python 3.11
    takes the threads for ended.

    Threads that had not begun when Ctrl-C came are not counted either: they find the consumer stopped.
    """

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self.busy = 0
        self.ended = 0
        self._changed = threading.Condition()
        super().__init__()

    def _after_fork(self) -> None:
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
