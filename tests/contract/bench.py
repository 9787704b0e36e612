"""Durable subscriptions through their ports, in memory and in the database, for one suite over both."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

import pytest

from db.liveness import Liveness
from db.transactions import Transactions
from subscriptions.domain.delivery import (
    Claimed,
    DeadLetter,
    DeadLetterFilter,
    Delivery,
    Nack,
    Outstanding,
    Receipt,
    Settled,
    State,
    Subscription,
)
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, Message, NewMessage
from subscriptions.engine.durable.neighbours import Lookup
from subscriptions.ports import (
    AttendancePort,
    ChannelPort,
    DeadLetterPort,
    DeliveryPort,
    DeparturePort,
    HistoryPort,
    HistoryQuery,
    PolicyPort,
    ReapPort,
    TransactionPort,
)
from tests.conftest import Database
from tests.contract.memory import MemoryAppender, MemoryChannels, MemoryHistory
from tests.contract.memory_dead_letters import MemoryDeadLetters
from tests.contract.memory_deliveries import MemoryDeliveries
from tests.contract.memory_log import MemoryLog
from tests.contract.memory_policies import MemoryPolicies
from tests.contract.memory_queues import MemoryQueues
from tests.contract.memory_transactions import MemoryTransactions
from tests.patience import cancel, eventually, in_time
from tests.race.laws import check_queues
from tests.race.queues import Queues, open_queues
from tests.race.support import check_log


class Port(DeliveryPort, ReapPort, DeparturePort, AttendancePort, Protocol):
    """All at once: they decide about the same rows."""


class Store(Protocol):
    """What stands behind a port, and what only time and administrators do to it."""

    async def subscribe(
        self, name: str, *channels: str, start: str = ..., **settings: Any
    ) -> Subscription: ...

    async def append(self, *messages: NewMessage) -> list[int]: ...

    async def settled(self) -> int: ...

    async def pass_time(self, seconds: float) -> None: ...

    async def tidy(self) -> None:
        """Maintenance runs once."""
        ...

    async def pause(self, name: str, paused: bool) -> None: ...

    async def change(self, name: str, **settings: Any) -> None: ...

    async def delete(self, name: str) -> None: ...

    async def seek(self, name: str, to: str) -> None: ...

    async def purge(self, name: str) -> int: ...

    async def trim(self, channel: str, keep: int) -> None:
        """Retention takes all but the newest; their rows stay for a while."""
        ...

    async def lose(self, channel: str, keep: int) -> None:
        """The same for good."""
        ...

    async def remove(self, channel: str) -> None:
        """The channel is deleted, and all that it held."""
        ...

    async def arrive(self, holder: int) -> None:
        """A process is there."""
        ...

    async def depart(self, holder: int) -> None:
        """It is gone, and has been for as long as it may come back."""
        ...

    async def members(self, subscription: Subscription) -> set[int]:
        """The processes that have members of it."""
        ...


class Bench:
    """The steps that tests take again and again."""

    def __init__(
        self,
        port: Port,
        lookup: Lookup,
        store: Store,
        dead_letters: DeadLetterPort,
        transactions: TransactionPort,
        careful: TransactionPort,
        policies: PolicyPort,
        history: HistoryPort,
        channels: ChannelPort,
    ) -> None:
        self.port = port
        self.lookup = lookup
        self.store = store
        self.dead_letters = dead_letters
        self.transactions = transactions
        self.careful = careful
        """Makes no channels."""
        self.policies = policies
        self.history = history
        self.channels = channels

    async def publish(self, channel: str, *data: Any, **members: Any) -> list[int]:
        """One message each; their ids."""
        return await self.store.append(
            *[NewMessage(channel, str(datum).encode(), **members) for datum in data]
        )

    async def claim(self, subscription: Subscription, limit: int = 10) -> Claimed:
        return await self.port.claim(subscription.id, await self.store.settled(), limit)

    async def take(self, subscription: Subscription, limit: int = 10) -> list[Delivery]:
        return list((await self.claim(subscription, limit)).deliveries)

    async def ack(self, subscription: Subscription, *deliveries: Delivery) -> list[str]:
        return outcomes(await self.port.ack(receipts(subscription, *deliveries)))

    async def nack(self, subscription: Subscription, *deliveries: Delivery, **how: Any) -> list[str]:
        return outcomes((await self.port.nack(receipts(subscription, *deliveries), Nack(**how)))[0])

    async def give_back(
        self, subscription: Subscription, *deliveries: Delivery, delay: float | None = None
    ) -> list[str]:
        return outcomes(await self.port.give_back(receipts(subscription, *deliveries), delay))

    async def release(self, subscription: Subscription, *deliveries: Delivery, delivered: bool) -> None:
        await self.port.release(receipts(subscription, *deliveries), delivered=delivered)

    async def withdraw(self, subscription: Subscription, *deliveries: Delivery) -> None:
        await self.port.withdraw(receipts(subscription, *deliveries))

    async def look(
        self, subscription: Subscription, state: State | None = None, limit: int = 1000
    ) -> list[Outstanding]:
        """Page after page."""
        found: list[Outstanding] = []
        after, more = 0, True
        while more:
            page = await self.port.look("default", subscription.name, state, after, limit)
            assert len(page.messages) <= limit
            assert page.cursor > after or not page.has_more
            found += page.messages
            after, more = page.cursor, page.has_more
        return found

    async def reap(self, subscription: Subscription) -> int:
        done, _ = await self.port.reap(subscription.id, await self.store.settled(), 1000)
        return done

    async def bury(self, subscription: Subscription, count: int = 1, **how: Any) -> list[int]:
        """Take so many messages and give up on them; the dead letters' ids."""
        taken = await self.take(subscription, count)
        assert len(taken) == count
        settled, _ = await self.port.nack(receipts(subscription, *taken), Nack(dead_letter=True, **how))
        return [item.dead_letter for item in settled if item.dead_letter is not None]

    async def letters(self, **which: Any) -> list[DeadLetter]:
        return await self.dead_letters.page(DeadLetterFilter("default", **which), 0, 1000)

    async def deaths(self) -> list[tuple[str, str, int]]:
        """(data, reason, attempts) of every dead letter."""
        letters = await self.letters()
        return [((e.message.data or b"").decode(), e.reason.value, e.attempts) for e in letters]

    async def stored(self, channel: str) -> list[Message]:
        """What the channel holds; nothing where there is none."""
        query = HistoryQuery("default", channel, None, None, None, (), (), 1000)
        try:
            return (await self.history.history(query)).messages
        except GaplessError as error:
            if error.code is Code.CHANNEL_NOT_FOUND:
                return []
            raise


def receipts(subscription: Subscription, *deliveries: Delivery) -> list[Receipt]:
    return [Receipt(subscription.id, delivery.message.id, delivery.lease) for delivery in deliveries]


def outcomes(settled: Sequence[Settled]) -> list[str]:
    return [item.status.value for item in settled]


async def code_of(asked: Awaitable[object]) -> Code:
    """Of the refusal."""
    with pytest.raises(GaplessError) as refused:
        await asked
    return refused.value.code


def data(deliveries: Sequence[Delivery]) -> list[str]:
    """What was published, in the order of delivery."""
    return [(delivery.message.data or b"").decode() for delivery in deliveries]


def attempts(deliveries: Sequence[Delivery]) -> list[int]:
    return [delivery.attempt for delivery in deliveries]


class Memory:
    """Nothing but this process, with a clock that tests move."""

    def __init__(self) -> None:
        # A clock that moves on a little with each look.
        self._looks = itertools.count(1_700_000_000_000_000)
        self._passed_us = 0
        self.log = MemoryLog(lambda: next(self._looks) + self._passed_us)
        self.queues = MemoryQueues(self.log)

    async def subscribe(
        self, name: str, *channels: str, start: str = "earliest", **settings: Any
    ) -> Subscription:
        return self.queues.subscribe(name, *channels, start=start, **settings)

    async def append(self, *messages: NewMessage) -> list[int]:
        (answer,) = await MemoryAppender(self.log).append([Append("default", messages)])
        assert not isinstance(answer, GaplessError), answer
        return [position.id for position in answer.positions]

    async def settled(self) -> int:
        return self.log.sequence

    async def pass_time(self, seconds: float) -> None:
        self._passed_us += round(seconds * 1_000_000)

    async def tidy(self) -> None:
        self.queues.tidy()

    async def pause(self, name: str, paused: bool) -> None:
        self.queues.pause(name, paused)

    async def change(self, name: str, **settings: Any) -> None:
        self.queues.change(name, settings)

    async def delete(self, name: str) -> None:
        self.queues.delete(name)

    async def seek(self, name: str, to: str) -> None:
        self.queues.seek(name, to)

    async def purge(self, name: str) -> int:
        queue = self.queues.find("default", name)
        assert queue is not None
        return self.queues.purge(queue, self.log.sequence)

    async def trim(self, channel: str, keep: int) -> None:
        self.log.trim(("default", channel), keep)

    async def lose(self, channel: str, keep: int) -> None:
        await self.trim(channel, keep)
        self.log.purge()

    async def remove(self, channel: str) -> None:
        self.log.delete(("default", channel))

    async def arrive(self, holder: int) -> None:
        self.queues.gone.discard(holder)

    async def depart(self, holder: int) -> None:
        self.queues.gone.add(holder)

    async def members(self, subscription: Subscription) -> set[int]:
        return {holder for id_, holder in self.queues.attendance if id_ == subscription.id}


class _Postgres:
    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._present: dict[int, asyncio.Task[None]] = {}
        self.subscribe = queues.subscribe
        self.append = queues.append
        self.settled = queues.settled
        self.pass_time = queues.pass_time

    async def tidy(self) -> None:
        await self._queues.maintenance.purge_rows(1000)

    async def pause(self, name: str, paused: bool) -> None:
        await self._queues.subscriptions.pause("default", name, paused)

    async def change(self, name: str, **settings: Any) -> None:
        await self._queues.subscriptions.patch("default", name, None, settings)

    async def delete(self, name: str) -> None:
        await self._queues.subscriptions.delete("default", name)

    async def seek(self, name: str, to: str) -> None:
        await self._queues.subscriptions.seek("default", name, to)

    async def purge(self, name: str) -> int:
        settled = await self._queues.settled()
        return await self._queues.subscriptions.purge("default", name, settled)

    async def trim(self, channel: str, keep: int) -> None:
        owner = self._queues.owner
        await owner.execute("update gapless.channels set max_messages = $2 where name = $1", channel, keep)
        await owner.execute("select gapless.trim_channels(1000)")

    async def lose(self, channel: str, keep: int) -> None:
        await self.trim(channel, keep)
        await self._queues.owner.execute(
            "delete from gapless.messages m using gapless.channels c"
            " where c.id = m.channel_id and m.id <= c.trimmed_id"
        )

    async def remove(self, channel: str) -> None:
        await self._queues.channels.delete("default", channel)
        await self._queues.maintenance.purge_rows(1000)

    async def arrive(self, holder: int) -> None:
        entered = asyncio.Event()
        liveness = Liveness(self._queues.config, holder, entered.set)
        self._present[holder] = asyncio.create_task(liveness.run())
        await in_time(entered.wait())

    async def depart(self, holder: int) -> None:
        task = self._present.pop(holder)
        await cancel(task)
        await eventually(lambda: self._is_missing(holder))
        await self._queues.owner.execute(
            "update gapless.processes set missing_since = missing_since - interval '2 seconds'"
            " where holder = $1",
            holder,
        )

    async def _is_missing(self, holder: int) -> bool:
        """Once its session has ended, somebody who looks notes so."""
        await self._queues.deliveries.departed([])
        missing = "select missing_since is not null from gapless.processes where holder = $1"
        return bool(await self._queues.owner.fetchval(missing, holder))

    async def members(self, subscription: Subscription) -> set[int]:
        attending = "select holder from gapless.attendance where subscription_id = $1"
        return {row["holder"] for row in await self._queues.owner.fetch(attending, subscription.id)}

    def close(self) -> None:
        """Everybody goes."""
        for task in self._present.values():
            task.cancel()


def in_memory() -> Bench:
    """Nothing but this process."""
    memory = Memory()
    port = MemoryDeliveries(memory.queues)
    return Bench(
        port,
        port,
        memory,
        MemoryDeadLetters(memory.queues),
        MemoryTransactions(memory.queues),
        MemoryTransactions(memory.queues, create_channels=False),
        MemoryPolicies(memory.queues),
        MemoryHistory(memory.log),
        MemoryChannels(memory.log),
    )


@asynccontextmanager
async def in_postgres(database: Database) -> AsyncIterator[Bench]:
    """The service's own adapters. What always holds in the database is looked at when the test ends."""
    async with open_queues(database) as queues:
        store = _Postgres(queues)
        yield Bench(
            queues.deliveries,
            queues.subscriptions,
            store,
            queues.dead_letters,
            queues.transactions,
            Transactions(queues.pool, queues.namespaces, create_channels=False),
            queues.policies,
            queues.history,
            queues.channels,
        )
        store.close()
        await check_queues(queues.owner)
        await check_log(queues.owner)
