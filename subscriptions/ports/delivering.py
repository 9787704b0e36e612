"""Ports for leasing and settling, and for deadlines, expiry and processes that are gone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from subscriptions.domain.delivery import (
    Claimed,
    DeadLetter,
    DeadLetterFilter,
    Hand,
    Looked,
    Loss,
    Nack,
    Receipt,
    Settled,
    State,
    Touched,
)


class DeliveryPort(Protocol):
    """Claims and settlements: each is one transaction of the database. Methods raise GaplessError
    `unavailable`."""

    async def claim(
        self, subscription_id: int, settled: int, limit: int, holder: int = 0, hands: Sequence[Hand] = ()
    ) -> Claimed:
        """Lease up to `limit` messages, the first one for the first of `hands`. An exception: a message in
        doubt goes only to a hand with few messages. Without `hands` all are for one pull. `settled`: nothing
        can appear at or below this id any more. `holder`: the leases end when this process ends."""
        ...

    async def ack(self, receipts: Sequence[Receipt]) -> list[Settled]:
        """One answer for each receipt, in order; committed when it returns."""
        ...

    async def nack(
        self, receipts: Sequence[Receipt], nack: Nack
    ) -> tuple[list[Settled], tuple[Touched, ...]]: ...

    async def extend(self, receipts: Sequence[Receipt], ack_wait_s: float | None) -> list[Settled]: ...

    async def give_back(self, receipts: Sequence[Receipt], delay_s: float | None) -> list[Settled]:
        """Make leases undone: each message is due again after `delay_s` seconds (None: at once), as if it had
        not been handed out. The attempt does not count, and the message is as much in doubt as before."""
        ...

    async def release(self, receipts: Sequence[Receipt], *, delivered: bool) -> tuple[Touched, ...]:
        """End all leases that one member held; their messages are due again at once. If they were not
        `delivered`, this does not count as an attempt."""
        ...

    async def withdraw(self, receipts: Sequence[Receipt]) -> None:
        """End these leases, of one subscription: each message is due again at once, and is as much in doubt
        as before. The attempt counts."""
        ...

    async def reported(self, subscription_id: int, losses: Sequence[Loss]) -> None:
        """Note that a stream or a pull was told of these losses."""
        ...

    async def live(self, receipts: Sequence[Receipt]) -> list[bool]:
        """For each of these receipts, whether its lease still holds."""
        ...

    async def look(self, namespace: str, name: str, state: State | None, after: int, limit: int) -> Looked:
        """At most `limit` messages that are not settled, in one state or in any, with ids above `after`;
        leases nothing. A page may be short or empty though more follow. Raises `subscription_not_found`."""
        ...


class AttendancePort(Protocol):
    """Which processes have members of a subscription. Methods raise GaplessError `unavailable`."""

    async def attend(self, subscription_id: int, holder: int) -> bool:
        """Note that this process has members; returns whether the subscription exists."""
        ...

    async def leave(self, subscription_id: int, holder: int) -> None:
        """Note that this process has no members any more."""
        ...


class ReapPort(Protocol):
    """Reaps what time alone decides: leases that ended, messages that expired, backlogs too long."""

    async def due(self, namespaces: Collection[str]) -> list[int]:
        """Ids of subscriptions of these namespaces that may have something to reap."""
        ...

    async def reap(self, subscription_id: int, settled: int, limit: int) -> tuple[int, tuple[Touched, ...]]:
        """Reap about `limit` messages at most; returns how many. Skips a subscription that another session is
        deciding about at the moment."""
        ...


class DeparturePort(Protocol):
    """Processes that are gone, and the leases of their streams. Methods raise GaplessError `unavailable`."""

    async def departed(self, namespaces: Collection[str]) -> list[tuple[int, int]]:
        """Pairs (process, subscription) in which a process that is gone still holds leases."""
        ...

    async def release_departed(
        self, holder: int, subscription_id: int, limit: int
    ) -> tuple[int, tuple[Touched, ...]]:
        """End about `limit` of these leases, those of one stream together; returns how many."""
        ...


class DeadLetterPort(Protocol):
    """The list of dead letters. Methods raise `unavailable`, `dead_letter_not_found`."""

    async def page(
        self, which: DeadLetterFilter, after: int, limit: int, names_regex: str | None = None
    ) -> list[DeadLetter]:
        """Dead letters with ids after `after`, in order of ids; only of subscriptions of such names."""
        ...

    async def get(self, namespace: str, dead_letter_id: int) -> DeadLetter: ...

    async def delete(self, namespace: str, dead_letter_id: int) -> None: ...

    async def replay(self, namespace: str, dead_letter_id: int) -> tuple[str, int]:
        """Give the message back to its subscription; returns the subscription's name and the message's id.
        Raises `subscription_not_found` when that subscription does not exist any more."""
        ...

    async def replay_all(
        self, which: DeadLetterFilter, most: int | None = None, rate: float | None = None
    ) -> tuple[int, int]:
        """Replay dead letters, at most `most`. Returns how many were replayed and how many were skipped:
        locked by another session, or their subscription is gone. With a `rate` each is due 1/rate seconds
        after the one before."""
        ...

    async def replayable(self, which: DeadLetterFilter, most: int | None = None) -> tuple[int, int]:
        """The answer that `replay_all` would give; changes nothing."""
        ...

    async def purge(self, which: DeadLetterFilter) -> int: ...
