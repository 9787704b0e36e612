"""A member of a subscription on threads: reads and extends in the background of its consumer."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gapless._call import Call
from gapless._calls import delivery as _delivery
from gapless._calls.delivery import Settled
from gapless._effects import Effects
from gapless._errors import Unreachable, apart
from gapless._forks import Forkable
from gapless._retry import NO_RETRY, RetryPolicy
from gapless._streams.consuming import Consuming, Inbox
from gapless._streams.gather import Gatherer
from gapless._streams.leases import NEVER, Lease
from gapless._sync.stream import Stream

T = TypeVar("T")

JOIN_SECONDS = 1.0
"""How long closing waits for a thread that is still connecting; that thread ends by itself soon after."""
LINGER_SECONDS = 0.05
"""How long closing waits for deliveries that were sent before and may still arrive."""
RELEASES = 5
SIGNAL_S = 0.5
"""A signal just before CPython blocks does not wake the main thread, so it looks at this interval."""


class Caller(Protocol):
    """Carries out a call."""

    def __call__(self, call: Call[T], policy: RetryPolicy | None = None) -> T: ...


@dataclass(slots=True, eq=False)
class _Ticket:
    """An ack that waits for its result."""

    lease: Lease
    result: Settled | None = None
    error: Exception | None = None

    @property
    def done(self) -> bool:
        return self.result is not None or self.error is not None


class Member(Forkable):
    """Two threads, one that reads and one that extends. Acks go out on the threads that wait for them.

    Only its own threads and its consumer refer to it, so that a garbage-collected consumer can end it. The
    threads are daemons: a process that ends does not wait for them. A forked child has neither the threads
    nor the leases: there it begins anew, as another member.
    """

    def __init__(self, consuming: Consuming, stream: Stream[Lease], call: Caller, effects: Effects) -> None:
        self._call = call
        self._clock = effects.clock
        self._failure: Exception | None = None
        self._ended = False
        self._stopped = False
        self._closing = False
        self._begin(consuming, stream)
        super().__init__()

    def _begin(self, consuming: Consuming, stream: Stream[Lease]) -> None:
        self.consuming = consuming
        self.leases = consuming.leases
        self._stream = stream
        self._inbox = Inbox(consuming.asked.prefetch)
        self._acks: Gatherer[_Ticket] = Gatherer()
        self._abandoned: deque[Lease] = deque()
        self._left_over: list[Lease] = []
        self._threads: list[threading.Thread] = []
        self._news = threading.Condition()
        self._settling = threading.Condition()
        self._plan_changed = threading.Event()
        self._planned_at = NEVER

    def _after_fork(self) -> None:
        consuming = self.consuming.anew()
        self._begin(consuming, self._stream._anew(consuming))

    @property
    def state(self) -> str:
        """The member's state as text for people."""
        if self._ended:
            return "closed"
        return "stopped" if self._stopped else "open" if self._threads else "not connected"

    def start(self) -> None:
        """Begins to read, unless it already does."""
        with self._news:
            if self._threads or self._ended or self._closing:
                return
            name = f"gapless {self.consuming.subscription}"
            for work in (self._read, self._keep):
                self._threads.append(threading.Thread(target=work, name=name, daemon=True))
            for thread in self._threads:
                thread.start()

    def opened(self) -> None:
        """Returns once the stream is open. Raises the error that prevents that for good."""
        self.start()
        with self._news:
            self._news.wait_for(lambda: self.consuming.started or self._ended or self._stopped)
            self._raise_failure()

    def take(self) -> Lease | None:
        """The next lease, or None when there will be none. Raises, once, the error that ended the stream."""
        self.start()
        with self._news:
            while not self._stopped:
                if (lease := self._inbox.take()) is not None:
                    self.leases.let_go(lease)
                    return lease
                if self._ended:
                    self._raise_failure()
                    return None
                self._news.wait(SIGNAL_S)
        return None

    def ack(self, lease: Lease) -> Settled:
        """One of the waiting threads sends the acks of all of them; meanwhile the next acks gather."""
        self.leases.let_go(lease)
        ticket = _Ticket(lease)
        with self._settling:
            self._acks.add(lease.receipt, ticket)
        while not ticket.done:
            with self._settling:
                self._settling.wait_for(lambda: ticket.done or not self._acks.sending)
                batch = [] if ticket.done else self._acks.take()
            if batch:
                self._send_acks(batch)
        if ticket.error is not None:
            raise apart(ticket.error)
        assert ticket.result is not None
        return ticket.result

    def nack(self, lease: Lease, delay: float | None, dead_letter: bool, reason: str | None) -> Settled:
        """Gives it back at once."""
        self.leases.let_go(lease)
        call = _delivery.nack(self.consuming.subscription, [lease.receipt], delay, dead_letter, reason)
        (settled,) = self._call(call)
        self.leases.settle(lease, settled)
        return settled

    def release(self, lease: Lease, delay: float | None) -> Settled:
        """Gives it back as if it had not been handed out."""
        self.leases.let_go(lease)
        (settled,) = self._call(_delivery.release(self.consuming.subscription, [lease.receipt], delay))
        self.leases.settle(lease, settled)
        return settled

    def extend(self, lease: Lease, ack_wait: float | None) -> Settled:
        """Moves its deadline."""
        (settled,) = self._call(_delivery.extend(self.consuming.subscription, [lease.receipt], ack_wait))
        self.leases.extended([settled], self._clock())
        return settled

    def keep(self, lease: Lease) -> None:
        """Extends it until it is settled."""
        self.leases.keep(lease)
        self._replan(lease)

    def abandon(self, lease: Lease) -> None:
        """Releases it without waiting, because an interrupted caller must not wait for the network.

        While the member is ending, closing it releases all that is left over: released before that, the
        message would come to this same stream once more.
        """
        if self._stopped:
            self._left_over.append(lease)
        else:
            self.leases.let_go(lease)
            self._abandoned.append(lease)
            self._plan_changed.set()

    def stop(self) -> None:
        """Stops handing out leases."""
        with self._news:
            self._stopped = True
            self._news.notify_all()

    def close(self, patience_seconds: float) -> None:
        """Ends the stream after the settling under way, and after it released what nobody began or finished;
        all other leases end with the stream."""
        self.stop()
        try:
            with self._settling:
                self._settling.wait_for(lambda: self._acks.idle and not self._abandoned, patience_seconds)
            self._release_left_over()
        finally:
            self.forsake()
            for thread in self._threads:
                thread.join(JOIN_SECONDS)
            self._ended = True

    def forsake(self) -> None:
        """Ends it without waiting for anything."""
        self._closing = True
        self.stop()
        self._plan_changed.set()
        self._stream.close()

    def _read(self) -> None:
        try:
            with self._stream as stream:
                self._tell()
                for lease in stream:
                    with self._news:
                        self._inbox.put(lease)
                        self._news.notify()
                    self._replan(lease)
        except Exception as error:  # noqa: BLE001 (every error has to reach the caller that takes)
            self._failure = error
        finally:
            self._ended = True
            self.leases.lose_all("the consumer ended")
            self._tell()

    def _keep(self) -> None:
        while True:
            while self._abandoned:
                self._release([self._abandoned[0]])
                with self._settling:
                    self._abandoned.popleft()
                    self._settling.notify_all()
            if self._closing:
                return
            now = self._clock()
            receipts = self.leases.due(now)
            if receipts:
                self._extend_due(receipts)
                continue
            # Until the plan is made, a thread that brings a lease has to ask for another plan.
            self._planned_at = NEVER
            self._planned_at = planned_at = self.leases.next_at()
            self._plan_changed.wait(min(planned_at - now, threading.TIMEOUT_MAX))
            self._plan_changed.clear()

    def _extend_due(self, receipts: list[str]) -> None:
        try:
            # One attempt: the leases that failed are due again, and by then others may be due too.
            results = self._call(self.consuming.extension(receipts), NO_RETRY)
        except Exception as error:  # noqa: BLE001 (the other leases still have to be extended)
            self.consuming.not_extended(receipts, error)
        else:
            self.leases.extended(results, self._clock())

    def _send_acks(self, batch: list[tuple[str, _Ticket]]) -> None:
        failure: Exception | None = None
        results: list[Settled] = []
        try:
            results = self._call(
                _delivery.ack(self.consuming.subscription, [receipt for receipt, _ in batch])
            )
        except Exception as error:  # noqa: BLE001 (every error has to reach the callers that wait for acks)
            failure = error
        except BaseException as error:
            failure = Unreachable(f"broken off by {error!r}", code="unreachable", retryable=True)
            raise
        finally:
            for index, (_, ticket) in enumerate(batch):
                if failure is None:
                    self.leases.settle(ticket.lease, results[index])
                    ticket.result = results[index]
                else:
                    ticket.error = failure
            with self._settling:
                self._acks.sent()
                self._settling.notify_all()

    def _release_left_over(self) -> None:
        for _ in range(RELEASES):
            with self._news:
                if not (self._inbox or self._left_over) and self._threads:
                    self._news.wait_for(lambda: self._ended or self._inbox, LINGER_SECONDS)
                left = [lease for lease in self._left_over if not lease.lost] + self._inbox.drain()
                self._left_over = []
            if not left:
                return
            self._release(left)

    def _release(self, leases: list[Lease]) -> None:
        try:
            results = self._call(self.consuming.release(leases), NO_RETRY)
        except Exception as error:  # noqa: BLE001 (no caller waits for it, and the loop goes on)
            self.consuming.not_released(leases, error)
        else:
            self.consuming.released(leases, results)

    def _replan(self, lease: Lease) -> None:
        if lease.extend_at < self._planned_at:
            self._plan_changed.set()

    def _tell(self) -> None:
        with self._news:
            self._news.notify_all()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
