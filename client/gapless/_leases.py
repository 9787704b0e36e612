"""The leases a member holds: which are to be extended when, and which are lost. Decided without waiting."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from weakref import WeakValueDictionary

from gapless._delivery import MAX_RECEIPTS, Delivery, Settled
from gapless._server_clock import ServerClock

log = logging.getLogger("gapless")

FLOOR_SECONDS = 0.25
"""A lease is extended no more often than this, however short it is or wrong the clocks are."""
FAILED_FLOOR_SECONDS = 1.0
"""A service that cannot be asked is not asked more often than this."""
NEVER = float("inf")


@dataclass(slots=True, eq=False, weakref_slot=True)
class Lease:
    """One delivery in hand. `lost`: its message is or will be handed out again. `settled`: the rest is done.
    `given`: the caller has it, so that its loss is worth a warning.

    `deadline` is by the service's clock, all else by the monotonic one: `asked_at` is when its end was last
    set, `extend_at` about half way to that end, `ends_at` the moment after which it is not extended any more.
    """

    delivery: Delivery
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
        return self.delivery.receipt


class Leases:
    """Keeps those leases alive that it is asked to keep. Threads may share it.

    A lease is lost when the service says so or the stream that gave it ended: never because a clock of this
    machine says so. `max_hold_seconds` bounds how long one is kept in all, so that a handler that hangs gives
    its message back at last.
    """

    def __init__(self, server_clock: ServerClock, max_hold_seconds: float) -> None:
        self.server_clock = server_clock
        self._max_hold_seconds = max_hold_seconds
        self._guard = threading.Lock()
        # What the caller dropped without a word is of no interest any more, and must not pile up.
        self._held: WeakValueDictionary[str, Lease] = WeakValueDictionary()
        self._kept: dict[str, Lease] = {}

    def begin(self, delivery: Delivery, now: float) -> Lease:
        """Holds and keeps what was just delivered."""
        lease = Lease(delivery, delivery.deadline, now + self._max_hold_seconds, now, now, now)
        self._set_end(lease, delivery.deadline, now)
        with self._guard:
            self._held[lease.receipt] = self._kept[lease.receipt] = lease
        return lease

    def keep(self, lease: Lease) -> None:
        """Extends it from now on, until it is settled, lost, or let go."""
        with self._guard:
            if not (lease.lost or lease.settled):
                self._kept[lease.receipt] = lease

    def let_go(self, lease: Lease) -> None:
        """Extends it no more; it ends at its deadline if nobody settles it."""
        with self._guard:
            self._kept.pop(lease.receipt, None)

    def settle(self, lease: Lease, settled: Settled | None = None) -> None:
        """It was settled, as `settled` says; None: elsewhere, such as in a transaction."""
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
        """The stream that gave them ended, and with it all of them."""
        with self._guard:
            held = list(self._held.values())
        for lease in held:
            self.lose(lease, why)

    def next_at(self) -> float:
        """When `due` has something to say next; `NEVER` while nothing is kept."""
        with self._guard:
            return min((lease.extend_at for lease in self._kept.values()), default=NEVER)

    def due(self, now: float) -> list[str]:
        """The receipts to extend now, at most as many as one call takes; `extended` or `failed` is due next.

        Those whose turn is near come along, so that leases of one time are extended together.
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
        """What the service said to the receipts of `due`, or of a caller's own extend."""
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
        """The service will not extend them, now or later."""
        for receipt in receipts:
            with self._guard:
                lease = self._held.get(receipt)
            if lease is not None:
                self.lose(lease, why)

    def failed(self, receipts: Sequence[str], now: float) -> None:
        """The service could not be asked: they are due again after half of what is left."""
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
                "message %d of %s is in hand for %.0f s: its lease is not extended any more",
                lease.delivery.message.id,
                lease.delivery.subscription,
                self._max_hold_seconds,
            )

    def _drop(self, lease: Lease) -> None:
        with self._guard:
            self._held.pop(lease.receipt, None)
            self._kept.pop(lease.receipt, None)
