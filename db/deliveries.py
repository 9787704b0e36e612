"""Implements `DeliveryPort` and `ReapPort`: each call is one statement and one commit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from db.connect import Pool, TooMuchAtOnceError
from db.namespaces import Namespaces
from db.reader import PAGE_BYTES
from db.rows import message
from db.subscriptions import no_subscription
from subscriptions.domain.delivery import (
    Claimed,
    Delivery,
    Hand,
    Looked,
    Loss,
    Nack,
    Outstanding,
    Receipt,
    Settled,
    Settlement,
    State,
    Touched,
)
from subscriptions.domain.model import microseconds

_MESSAGE, _NOTE = range(2)
_DONE, _ENDED, _UNKNOWN = range(3)

FEW = 16
"""Even of the largest messages, this many are not too much for one transaction."""

ROUNDS = 20
"""How often a claim buries a few messages first; after that a later claim goes on."""

_Columns = tuple[list[int], list[int], list[int]]


class _Note(msgspec.Struct):
    """What the last row of a claim tells."""

    status: str
    more: bool = False
    doubt: bool = False
    touched: msgspec.Raw = msgspec.Raw(b"null")
    gaps: tuple[Loss, ...] | None = None


_decode_note = msgspec.json.Decoder(_Note).decode


class Deliveries:
    """Claims and settles over one pool. Every decision takes its subscription's lock in the database, so more
    than a few connections would only wait for one another."""

    def __init__(self, pool: Pool, namespaces: Namespaces) -> None:
        self._pool = pool
        self._namespaces = namespaces

    async def claim(
        self, subscription_id: int, settled: int, limit: int, holder: int = 0, hands: Sequence[Hand] = ()
    ) -> Claimed:
        touched: tuple[Touched, ...] = ()
        for _ in range(ROUNDS):
            try:
                # Without both, all are for one pull.
                members = [hand.member for hand in hands[:limit]] or None
                places = [hand.place for hand in hands[:limit]] or None
                asked = (subscription_id, settled, limit, members, places)
                *rows, last = await (
                    self._pool.fetch("claim_streamed", *asked, holder)
                    if holder
                    else self._pool.fetch("claim", *asked)
                )
                break
            except TooMuchAtOnceError:
                # The messages that have to die first are large: reap a few at a time, then claim.
                _, died = await self.reap(subscription_id, settled, FEW)
                touched += died
                limit = 1
        else:
            raise TooMuchAtOnceError
        note = _decode_note(last["note"])
        retry_at = last["deadline"]
        return Claimed(
            tuple([_delivery(row) for row in rows]),
            None if retry_at is None else microseconds(retry_at),
            note.more,
            note.status == "gone",
            note.status == "paused",
            touched + await self._namespaces.touched(note.touched),
            note.doubt,
            note.gaps or (),
        )

    async def ack(self, receipts: Sequence[Receipt]) -> list[Settled]:
        statuses = await self._pool.fetchval("ack", *_columns(receipts))
        return _settled(statuses, Settlement.ACKED)

    async def nack(
        self, receipts: Sequence[Receipt], nack: Nack
    ) -> tuple[list[Settled], tuple[Touched, ...]]:
        subscriptions, messages, leases = _columns(receipts)
        try:
            row = await self._pool.fetchrow(
                "nack", subscriptions[0], messages, leases, nack.delay, nack.dead_letter, nack.reason
            )
        except TooMuchAtOnceError:
            first, rest = _halves(receipts)
            (settled, touched), (others, more) = await self.nack(first, nack), await self.nack(rest, nack)
            return settled + others, touched + more
        entries = row["dead_letters"] or [None] * len(receipts)
        settled = [
            each if each.status is not Settlement.NACKED else each._replace(dead_letter=entry)
            for each, entry in zip(_settled(row["statuses"], Settlement.NACKED), entries, strict=True)
        ]
        return settled, await self._namespaces.touched(row["touched"])

    async def extend(self, receipts: Sequence[Receipt], ack_wait_s: float | None) -> list[Settled]:
        subscriptions, messages, leases = _columns(receipts)
        row = await self._pool.fetchrow("extend", subscriptions[0], messages, leases, ack_wait_s)
        deadline_us = None if row["deadline"] is None else microseconds(row["deadline"])
        return [
            each if each.status is not Settlement.EXTENDED else each._replace(deadline_us=deadline_us)
            for each in _settled(row["statuses"], Settlement.EXTENDED)
        ]

    async def give_back(self, receipts: Sequence[Receipt], delay_s: float | None) -> list[Settled]:
        subscriptions, messages, leases = _columns(receipts)
        statuses = await self._pool.fetchval("give_back", subscriptions[0], messages, leases, delay_s)
        return _settled(statuses, Settlement.RELEASED)

    async def release(self, receipts: Sequence[Receipt], *, delivered: bool) -> tuple[Touched, ...]:
        subscriptions, messages, leases = _columns(receipts)
        try:
            touched = await self._pool.fetchval("release", subscriptions[0], messages, leases, delivered)
        except TooMuchAtOnceError:
            first, rest = _halves(receipts)
            released = await self.release(first, delivered=delivered)
            return released + await self.release(rest, delivered=delivered)
        return await self._namespaces.touched(touched)

    async def withdraw(self, receipts: Sequence[Receipt]) -> None:
        subscriptions, messages, leases = _columns(receipts)
        await self._pool.fetchval("withdraw", subscriptions[0], messages, leases)

    async def reported(self, subscription_id: int, losses: Sequence[Loss]) -> None:
        channels, numbers = [loss.channel_id for loss in losses], [loss.number for loss in losses]
        missed = [loss.missed for loss in losses]
        await self._pool.fetchval("told_gaps", subscription_id, channels, numbers, missed)

    async def live(self, receipts: Sequence[Receipt]) -> list[bool]:
        live: list[bool] | None = await self._pool.fetchval("live_leases", *_columns(receipts))
        return live or []

    async def attend(self, subscription_id: int, holder: int) -> bool:
        return bool(await self._pool.fetchval("attend", subscription_id, holder))

    async def leave(self, subscription_id: int, holder: int) -> None:
        await self._pool.fetchval("leave", subscription_id, holder)

    async def look(self, namespace: str, name: str, state: State | None, after: int, limit: int) -> Looked:
        namespace_id = await self._namespaces.id(namespace)
        asked = (None if state is None else state.value, after, limit, PAGE_BYTES)
        rows = await self._pool.fetch("look", namespace_id, name, *asked)
        if not rows:
            raise no_subscription(name)
        *rows, last = rows
        return Looked(tuple([_outstanding(row) for row in rows]), **msgspec.json.decode(last["note"]))

    async def due(self, namespaces: Collection[str]) -> list[int]:
        ids = await self._namespaces.ids(namespaces)
        return [row["id"] for row in await self._pool.fetch("reapable", ids)]

    async def reap(self, subscription_id: int, settled: int, limit: int) -> tuple[int, tuple[Touched, ...]]:
        row = await self._few_at_a_time("reap", subscription_id, settled, limit=limit)
        return row["done"] or 0, await self._namespaces.touched(row["touched"])

    async def departed(self, namespaces: Collection[str]) -> list[tuple[int, int]]:
        ids = await self._namespaces.ids(namespaces)
        return [(row["holder"], row["subscription_id"]) for row in await self._pool.fetch("departed", ids)]

    async def release_departed(
        self, holder: int, subscription_id: int, limit: int
    ) -> tuple[int, tuple[Touched, ...]]:
        row = await self._few_at_a_time("release_departed", holder, subscription_id, limit=limit)
        return row["done"], await self._namespaces.touched(row["touched"])

    async def _few_at_a_time(self, block: str, *arguments: object, limit: int) -> Any:
        """Run a decision with smaller limits while it would bury more than a transaction should hold."""
        while True:
            try:
                return await self._pool.fetchrow(block, *arguments, limit)
            except TooMuchAtOnceError:
                limit = max(1, limit // 4)


def _columns(receipts: Sequence[Receipt]) -> _Columns:
    return (
        [r.subscription_id for r in receipts],
        [r.message_id for r in receipts],
        [r.lease for r in receipts],
    )


def _halves(receipts: Sequence[Receipt]) -> tuple[Sequence[Receipt], Sequence[Receipt]]:
    """Split them in two. One alone is never too much, so there are at least two."""
    middle = len(receipts) // 2
    return receipts[:middle], receipts[middle:]


def _delivery(row: Any) -> Delivery:
    return Delivery(
        message(row, row["channel"]),
        row["lease"],
        row["attempts"],
        microseconds(row["deadline"]),
        row["member"],
        row["company"],
    )


def _outstanding(row: Any) -> Outstanding:
    return Outstanding(
        message(row, row["channel"]),
        State(row["state"]),
        row["attempt"],
        None if row["at"] is None else microseconds(row["at"]),
        row["member"],
        row["waits_for"],
        row["last_error"],
    )


def _settled(statuses: Sequence[int], done: Settlement) -> list[Settled]:
    means = {
        _DONE: Settled(done),
        _ENDED: Settled(Settlement.LEASE_EXPIRED),
        _UNKNOWN: Settled(Settlement.UNKNOWN),
    }
    return [means[status] for status in statuses]
