"""The leases of a member: when to extend which, and which are lost. Nothing here waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from weakref import WeakValueDictionary

from gapless._calls.delivery import MAX_RECEIPTS, PulledDelivery, Settled, receipt_of
from gapless._errors import ProtocolError
from gapless._streams.server_clock import ServerClock

log = logging.getLogger("gapless")

FLOOR_SECONDS = 0.25
"""A lease is extended at most this often, even if it is short or a clock is wrong."""
FAILED_FLOOR_SECONDS = 1.0
"""The shortest wait before the next request to a service that could not be asked."""
NEVER = float("inf")


@dataclass(slots=True, eq=False, weakref_slot=True)
class Lease:
    """One delivery in hand. `lost`: its message is or will be handed out again. `settled`: nothing is left to
    do. `given`: the caller has it, so its loss is worth a warning.

    `deadline` is by the service's clock, the other times by the monotonic clock. `asked_at` is when the
    deadline was last set, `extend_at` is about half way to it, and after `ends_at` the lease is not extended.
    """

    delivery: PulledDelivery
    deadline: datetime
    ends_at: float
    asked_at: float
    expires_at: float
    extend_at: float
    given: bool = False
    lost: bool = False
    settled: bool = False

    @property
    def receipt(self) -> str:
        return receipt_of(self.delivery)


class Leases:
    """Keeps chosen leases alive. Threads may share it.

    A lease is lost when the service says so or when the stream that gave it ended. A clock of this machine
    never decides that. `max_hold_seconds` limits how long a lease is kept in total, so that a handler that
    hangs loses its message in the end.
    """

    def __init__(self, server_clock: ServerClock, max_hold_seconds: float) -> None:
        self.server_clock = server_clock
        self._max_hold_seconds = max_hold_seconds
        self._guard = threading.Lock()
        # Leases that the caller dropped without settling them must not accumulate.
        self._held: WeakValueDictionary[str, Lease] = WeakValueDictionary()
        self._kept: dict[str, Lease] = {}

    def begin(self, delivery: PulledDelivery, now: float) -> Lease:
        """Makes a lease of a new delivery and keeps it alive. Raises `ProtocolError` if it has none."""
        if delivery.deadline is None:
            raise ProtocolError(f"a member that settles got a delivery without a lease: {delivery!r:.200}")
        lease = Lease(delivery, delivery.deadline, now + self._max_hold_seconds, now, now, now)
        self._set_end(lease, delivery.deadline, now)
        with self._guard:
            self._held[lease.receipt] = self._kept[lease.receipt] = lease
        return lease

    def keep(self, lease: Lease) -> None:
        """Extends it from now on, until it is settled, lost or let go."""
        with self._guard:
            if not (lease.lost or lease.settled):
                self._kept[lease.receipt] = lease

    def let_go(self, lease: Lease) -> None:
        """Stops extending it; it ends at its deadline unless it is settled."""
        with self._guard:
            self._kept.pop(lease.receipt, None)

    def settle(self, lease: Lease, settled: Settled | None = None) -> None:
        """It was settled with this result; None if that happened elsewhere, such as in a transaction."""
        self._drop(lease)
        lease.settled = True
        if settled is not None and settled.status == "acked":
            lease.lost = False
        elif settled is not None and settled.status == "lease_expired":
            self.lose(lease, "it ended before it was settled")

    def lose(self, lease: Lease, why: str) -> None:
        """Its message will be handed out again."""
        self._drop(lease)
        if not lease.lost:
            lease.lost = True
            delivery, level = lease.delivery, logging.WARNING if lease.given else logging.DEBUG
            what = (delivery.message.id, delivery.subscription)
            log.log(level, "lease of message %d of %s lost: %s", *what, why)

    def lose_all(self, why: str) -> None:
        """All leases ended with the stream that gave them."""
        with self._guard:
            held = list(self._held.values())
        for lease in held:
            self.lose(lease, why)

    def next_at(self) -> float:
        """The time at which `due` next returns receipts; `NEVER` while nothing is kept."""
        with self._guard:
            return min((lease.extend_at for lease in self._kept.values()), default=NEVER)

    def due(self, now: float) -> list[str]:
        """The receipts to extend now, at most as many as one call takes. Then call `extended` or `failed`.

        Leases that are due soon are included, so that leases of about one time are extended together.
        """
        with self._guard:
            self._drop_hanging(now)
            kept = self._kept.values()
            if not any(lease.extend_at <= now for lease in kept):
                return []
            asked = [
                lease for lease in kept if lease.extend_at - (lease.extend_at - lease.asked_at) / 2 <= now
            ]
            for lease in asked[:MAX_RECEIPTS]:
                lease.extend_at = NEVER
            return [lease.receipt for lease in asked[:MAX_RECEIPTS]]

    def extended(self, results: Iterable[Settled], now: float) -> None:
        """Takes the service's results for the receipts of `due`, or of a caller's own extend."""
        for result in results:
            with self._guard:
                lease = self._held.get(result.receipt)
            if lease is None:
                continue  # It was settled meanwhile.
            if result.status != "extended" or result.deadline is None:
                self.lose(lease, "it ended before it was extended")
            else:
                self._set_end(lease, result.deadline, now)

    def refused(self, receipts: Iterable[str], why: str) -> None:
        """The service refused to extend them, for good."""
        for receipt in receipts:
            with self._guard:
                lease = self._held.get(receipt)
            if lease is not None:
                self.lose(lease, why)

    def failed(self, receipts: Sequence[str], now: float) -> None:
        """The service could not be asked: they are due again after half of the time left."""
        for receipt in receipts:
            with self._guard:
                lease = self._held.get(receipt)
            if lease is not None:
                self._plan(lease, now, FAILED_FLOOR_SECONDS)

    def _set_end(self, lease: Lease, deadline: datetime, now: float) -> None:
        lease.deadline = deadline
        lease.expires_at = now + self.server_clock.seconds_until(deadline)
        self._plan(lease, now)

    def _plan(self, lease: Lease, now: float, floor_seconds: float = FLOOR_SECONDS) -> None:
        lease.asked_at = now
        lease.extend_at = now + max((lease.expires_at - now) / 2, floor_seconds)

    def _drop_hanging(self, now: float) -> None:
        hanging = [lease for lease in self._kept.values() if lease.ends_at <= now]
        for lease in hanging:
            del self._kept[lease.receipt]
            log.warning(
                "message %d of %s has been in hand for %.0f s: its lease is not extended any more",
                lease.delivery.message.id,
                lease.delivery.subscription,
                self._max_hold_seconds,
            )

    def _drop(self, lease: Lease) -> None:
        with self._guard:
            self._held.pop(lease.receipt, None)
            self._kept.pop(lease.receipt, None)
