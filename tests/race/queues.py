"""Durable subscriptions through their adapters, and what is true of them whatever was done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from db.appender import Appender
from db.channels import Channels
from db.connect import DatabaseConfig, Pool
from db.dead_letters import DeadLetters
from db.deliveries import Deliveries
from db.history import History
from db.maintenance import Maintenance
from db.namespaces import Namespaces
from db.policies import Policies
from db.reader import Reader
from db.scheduled import Schedule
from db.subscriptions import Subscriptions
from db.transactions import Transactions
from subscriptions.domain.delivery import (
    AppliesTo,
    Claimed,
    DeadLetter,
    DeadLetterFilter,
    Definition,
    Delivery,
    Nack,
    Policy,
    Receipt,
    Settled,
    Stats,
    Subscription,
)
from subscriptions.domain.model import Append, NewMessage
from subscriptions.domain.watermark import Watermark
from tests.conftest import Database
from tests.race.support import stored

ALL = 2**53 - 1
"""A watermark above everything."""


class Queues:
    """The adapters over one database, and the steps that tests take again and again."""

    def __init__(self, config: DatabaseConfig, owner: asyncpg.Connection) -> None:
        self.owner = owner
        self.config = config
        self.pool = Pool(config, application="test", size=16)
        self.namespaces = names = Namespaces(self.pool)
        self.deliveries = Deliveries(self.pool, names)
        self.subscriptions = Subscriptions(self.pool, names)
        self.dead_letters = DeadLetters(self.pool, names)
        self.policies = Policies(self.pool, names)
        self.schedule = Schedule(self.pool, names, create_channels=True)
        self.transactions = Transactions(self.pool, names, create_channels=True)
        self.maintenance = Maintenance(self.pool)
        self.history = History(self.pool)
        self.channels = Channels(self.pool)
        self.reader = Reader(self.pool, self.pool, self.pool)
        self.appender = Appender(config)
        self._watermark = Watermark()

    async def close(self) -> None:
        self.appender.terminate()
        await self.pool.close()

    # --- publishing

    async def publish(self, channel: str, *data: Any, key: str | None = None, **members: Any) -> list[int]:
        """One message each; their ids."""
        texts = [str(item).encode() for item in data]
        return await self.append(*[NewMessage(channel, text, key=key, **members) for text in texts])

    async def append(self, *messages: NewMessage) -> list[int]:
        (answer,) = await self.appender.append([Append("default", messages)])
        return [position.id for position in stored(answer).positions]

    # --- subscribing

    async def subscribe(
        self, name: str, *channels: str, start: str = "earliest", **settings: Any
    ) -> Subscription:
        """A new one."""
        definition = Definition(name, channels or (name,), start, settings)
        subscription, made = await self.subscriptions.put("default", definition)
        assert made
        return subscription

    async def policy(self, name: str, pattern: str, priority: int = 0, **definition: Any) -> None:
        """Over subscriptions."""
        policy = Policy(name, pattern, AppliesTo.SUBSCRIPTIONS, priority, definition)
        await self.policies.put("default", policy)

    async def stats(self, name: str) -> Stats:
        subscription = await self.subscriptions.get("default", name, stats=True)
        assert subscription.stats is not None
        return subscription.stats

    # --- taking and settling

    async def settled(self) -> int:
        """The last id taken; below it while somebody publishes."""
        while True:
            tick = await self.reader.tick()
            settled = self._watermark.observe(tick)
            if settled == tick.last_id or tick.holders:
                return settled

    async def claim(self, subscription: Subscription, limit: int = 10, settled: int | None = None) -> Claimed:
        known = await self.settled() if settled is None else settled
        return await self.deliveries.claim(subscription.id, known, limit)

    async def take(self, subscription: Subscription, limit: int = 10) -> list[Delivery]:
        return list((await self.claim(subscription, limit)).deliveries)

    async def end_in(self, delivery: Delivery, microseconds: int) -> None:
        """Move the deadline of a lease to so long from now."""
        await self.owner.execute(
            "with moved as (update gapless.deliveries"
            " set at = clock_timestamp() + $2 * interval '1 microsecond'"
            " where message_id = $1 and subscription_id > 0 returning subscription_id, at)"
            " update gapless.progress p set next_end = least(p.next_end, m.at) from moved m"
            " where p.subscription_id = m.subscription_id",
            delivery.message.id,
            microseconds,
        )

    async def passes_now(self, delivery: Delivery) -> None:
        """The deadline of a lease is now, also while another session holds its subscription. Claims and
        reapers look for it only after `end_in`."""
        await self.owner.execute(
            "update gapless.deliveries set at = clock_timestamp()"
            " where message_id = $1 and subscription_id > 0",
            delivery.message.id,
        )

    async def take_all(self, subscription: Subscription, limit: int = 1000) -> list[Delivery]:
        """Until nothing more is given, acking as it comes."""
        taken: list[Delivery] = []
        while True:
            claimed = await self.claim(subscription, limit)
            taken += claimed.deliveries
            if claimed.deliveries:
                await self.ack(subscription, *claimed.deliveries)
            elif not claimed.more:
                return taken

    async def ack(self, subscription: Subscription, *deliveries: Delivery) -> list[str]:
        return outcomes(await self.deliveries.ack(receipts(subscription, *deliveries)))

    async def nack(self, subscription: Subscription, *deliveries: Delivery, **how: Any) -> list[str]:
        settled, _ = await self.deliveries.nack(receipts(subscription, *deliveries), Nack(**how))
        return outcomes(settled)

    async def give_back(
        self, subscription: Subscription, *deliveries: Delivery, delay: float | None = None
    ) -> list[str]:
        return outcomes(await self.deliveries.give_back(receipts(subscription, *deliveries), delay))

    async def reap(self, subscription: Subscription, limit: int = 1000) -> int:
        """Until there is nothing to decide; how much was."""
        total = 0
        while True:
            done, _ = await self.deliveries.reap(subscription.id, await self.settled(), limit)
            if done == 0:
                return total
            total += done

    async def bury(self, subscription: Subscription, count: int = 1, **how: Any) -> list[int]:
        """Take so many messages and give up on them; the dead letters' ids."""
        deliveries = await self.take(subscription, count)
        assert len(deliveries) == count
        settled, _ = await self.deliveries.nack(
            receipts(subscription, *deliveries), Nack(dead_letter=True, **how)
        )
        return [item.dead_letter for item in settled if item.dead_letter is not None]

    async def reject(
        self, subscription: Subscription, *deliveries: Delivery, reason: str | None = None
    ) -> None:
        if deliveries:
            await self.nack(subscription, *deliveries, dead_letter=True, reason=reason)

    async def letters(self, limit: int = 1000, **which: Any) -> list[DeadLetter]:
        return await self.dead_letters.page(DeadLetterFilter("default", **which), 0, limit)

    # --- time

    async def pass_time(self, seconds: float) -> None:
        """As if everything that was done had been done so much earlier."""
        for table, columns in _TIMES.items():
            changes = ", ".join(f"{column} = {column} - $1 * interval '1 second'" for column in columns)
            await self.owner.execute(f"update gapless.{table} set {changes}", seconds)


_TIMES = {
    "deliveries": ("at", "entered_at", "expires_at"),
    "messages": ("created_at", "expires_at"),
    "progress": ("not_before", "expired_to", "next_end"),
    "dead_letters": ("created_at", "remove_at"),
    "scheduled": ("deliver_at", "until"),
}


def receipts(subscription: Subscription, *deliveries: Delivery) -> list[Receipt]:
    return [Receipt(subscription.id, delivery.message.id, delivery.lease) for delivery in deliveries]


def outcomes(settled: Sequence[Settled]) -> list[str]:
    return [item.status.value for item in settled]


def bodies(deliveries: Sequence[Delivery]) -> list[str]:
    """What was published, in the order of delivery."""
    return [(d.message.data or b"").decode() for d in deliveries]


def attempts(deliveries: Sequence[Delivery]) -> list[int]:
    return [delivery.attempt for delivery in deliveries]


CLAIM = "select * from gapless.claim($1, $2, $3)"
ACK = "select gapless.ack($1, $2, $3)"
NACK = "select * from gapless.nack($1, $2, $3, null, $4, null)"
GIVE_BACK = "select * from gapless.give_back_leases($1, $2, $3, null)"
REAP = "select * from gapless.reap($1, $2, 1000)"


class Step:
    """What a session has decided and not committed."""

    def __init__(self, transaction: Any, rows: list[Any]) -> None:
        self._transaction = transaction
        self.rows = rows

    async def end(self, *, commits: bool = True) -> None:
        await (self._transaction.commit() if commits else self._transaction.rollback())


async def step(session: asyncpg.Connection, statement: str, *arguments: object) -> Step:
    """Decide, and hold what that holds until told to end."""
    transaction = session.transaction()
    await transaction.start()
    return Step(transaction, await session.fetch(statement, *arguments))


def columns(subscription: Subscription, *deliveries: Delivery) -> tuple[list[int], list[int], list[int]]:
    """Receipts as `gapless.ack` takes them."""
    return (
        [subscription.id] * len(deliveries),
        [delivery.message.id for delivery in deliveries],
        [delivery.lease for delivery in deliveries],
    )


@asynccontextmanager
async def open_queues(database: Database) -> AsyncIterator[Queues]:
    """The service's own connections, and one of the owner for what only time and administrators do."""
    owner: asyncpg.Connection = await asyncpg.connect(database.owner_url)
    made = Queues(DatabaseConfig(database.service_url), owner)
    try:
        yield made
    finally:
        await made.close()
        owner.terminate()
