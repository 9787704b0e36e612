"""Ports for definitions, dead letters and scheduled messages that also wake the groups that wait here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from subscriptions.domain.claiming import SETTLE_S, WATCH_S
from subscriptions.domain.delivery import (
    Change,
    DeadLetter,
    DeadLetterFilter,
    Definition,
    Definitions,
    Length,
    Moment,
    Policy,
    Receipt,
    Scheduled,
    Settings,
    Stats,
    Subscription,
    Tags,
    Touched,
)
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, Appended, NewMessage
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.durable.reaper import Scheduler
from subscriptions.engine.maintenance import audit
from subscriptions.engine.publisher import Publisher
from subscriptions.ports import (
    Clock,
    DeadLetterPort,
    LookAtLog,
    PolicyPort,
    SchedulePort,
    SubscriptionPort,
    TransactionPort,
)


class AnnouncingSubscriptions:
    """Implements `SubscriptionPort` over another one. `told` is called when a subscription has changed;
    `look()` asks where the log stands."""

    def __init__(
        self,
        port: SubscriptionPort,
        consumers: Consumers,
        told: Callable[[], None],
        *,
        clock: Clock,
        look: LookAtLog,
    ) -> None:
        self._port = port
        self._consumers = consumers
        self._told = told
        self._clock = clock
        self._look = look

    async def put(
        self, namespace: str, definition: Definition, *, if_match: Tags | None = None, if_absent: bool = False
    ) -> tuple[Subscription, bool]:
        put = await self._port.put(namespace, definition, if_match=if_match, if_absent=if_absent)
        if if_match is not None:
            self._consumers.changed(namespace, definition.name, put[0].id)
        self._told()
        return put

    async def get(self, namespace: str, name: str, *, stats: bool) -> Subscription:
        return await self._port.get(namespace, name, stats=stats)

    async def page(
        self, namespace: str, pattern_regex: str | None, after: str, limit: int
    ) -> list[Subscription]:
        return await self._port.page(namespace, pattern_regex, after, limit)

    async def patch(
        self,
        namespace: str,
        name: str,
        channels: tuple[str, ...] | None,
        settings: Settings,
        *,
        if_match: Tags | None = None,
    ) -> Subscription:
        patched = await self._port.patch(namespace, name, channels, settings, if_match=if_match)
        self._changed(namespace, name, patched.id)
        return patched

    async def bind(
        self,
        namespace: str,
        name: str,
        channels: tuple[str, ...],
        bound: bool,
        *,
        if_match: Tags | None = None,
    ) -> Subscription:
        changed = await self._port.bind(namespace, name, channels, bound, if_match=if_match)
        self._changed(namespace, name, changed.id)
        return changed

    async def delete(
        self,
        namespace: str,
        name: str,
        *,
        if_match: Tags | None = None,
        if_empty: bool = False,
        if_unused: bool = False,
    ) -> None:
        if if_unused:
            # Members that left before this call must not count any more.
            await self._consumers.attendance.told()
        await self._port.delete(namespace, name, if_match=if_match, if_empty=if_empty, if_unused=if_unused)
        self._changed(namespace, name)

    async def purge(
        self, namespace: str, name: str, settled: int | None = None, *, if_match: Tags | None = None
    ) -> int:
        """Purge the messages that were committed before this call. It waits `SETTLE_S` at most until they are
        settled."""
        settled, last_id = await self._look()
        until = self._clock() + SETTLE_S
        while settled < last_id and self._clock() < until:
            await asyncio.sleep(WATCH_S)
            settled, _ = await self._look()
        purged = await self._port.purge(namespace, name, settled, if_match=if_match)
        audit.info("subscription %s of %s was purged: %d messages", name, namespace, purged)
        self._consumers.changed(namespace, name)
        return purged

    async def length(self, namespace: str, name: str) -> Length:
        return await self._port.length(namespace, name)

    async def seek(self, namespace: str, name: str, to: str, *, if_match: Tags | None = None) -> Subscription:
        moved = await self._port.seek(namespace, name, to, if_match=if_match)
        self._consumers.changed(namespace, name, moved.id)
        return moved

    async def try_seek(
        self, namespace: str, name: str, to: str, *, if_match: Tags | None = None
    ) -> tuple[Subscription, Stats | None]:
        return await self._port.try_seek(namespace, name, to, if_match=if_match)

    async def pause(
        self, namespace: str, name: str, paused: bool, *, if_match: Tags | None = None
    ) -> Subscription:
        stopped = await self._port.pause(namespace, name, paused, if_match=if_match)
        self._changed(namespace, name, stopped.id)
        return stopped

    async def pause_pushed(self, namespace: str, name: str, url: str) -> bool:
        paused = await self._port.pause_pushed(namespace, name, url)
        if paused:
            self._changed(namespace, name)
        return paused

    def _changed(self, namespace: str, name: str, subscription_id: int | None = None) -> None:
        self._consumers.changed(namespace, name, subscription_id)
        self._told()


class AnnouncingDeadLetters:
    """Implements `DeadLetterPort` over another one."""

    def __init__(self, port: DeadLetterPort, consumers: Consumers) -> None:
        self._port = port
        self._consumers = consumers

    async def page(self, which: DeadLetterFilter, after: int, limit: int) -> list[DeadLetter]:
        return await self._port.page(which, after, limit)

    async def get(self, namespace: str, dead_letter_id: int) -> DeadLetter:
        return await self._port.get(namespace, dead_letter_id)

    async def delete(self, namespace: str, dead_letter_id: int) -> None:
        await self._port.delete(namespace, dead_letter_id)

    async def replay(self, namespace: str, dead_letter_id: int) -> tuple[str, int]:
        name, message_id = await self._port.replay(namespace, dead_letter_id)
        self._consumers.changed(namespace, name)
        return name, message_id

    async def replay_all(
        self, which: DeadLetterFilter, most: int | None = None, rate: float | None = None
    ) -> tuple[int, int]:
        replayed = await self._port.replay_all(which, most, rate)
        self._consumers.changed_all(which.namespace)
        return replayed

    async def replayable(self, which: DeadLetterFilter, most: int | None = None) -> tuple[int, int]:
        return await self._port.replayable(which, most)

    async def purge(self, which: DeadLetterFilter) -> int:
        return await self._port.purge(which)


class AnnouncingPolicies:
    """Implements `PolicyPort` over another one."""

    def __init__(self, port: PolicyPort, consumers: Consumers) -> None:
        self._port = port
        self._consumers = consumers

    async def put(
        self, namespace: str, policy: Policy, *, if_match: Tags | None = None, if_absent: bool = False
    ) -> tuple[bool, str]:
        made = await self._port.put(namespace, policy, if_match=if_match, if_absent=if_absent)
        self._consumers.changed_all(namespace)
        return made

    async def get(self, namespace: str, name: str) -> Policy:
        return await self._port.get(namespace, name)

    async def all(self, namespace: str) -> list[Policy]:
        return await self._port.all(namespace)

    async def delete(self, namespace: str, name: str, *, if_match: Tags | None = None) -> None:
        await self._port.delete(namespace, name, if_match=if_match)
        self._consumers.changed_all(namespace)

    async def definitions(self, namespace: str) -> Definitions:
        return await self._port.definitions(namespace)

    async def apply(
        self, namespace: str, wanted: Definitions, *, dry_run: bool, if_match: Tags | None = None
    ) -> tuple[list[Change], int]:
        applied = await self._port.apply(namespace, wanted, dry_run=dry_run, if_match=if_match)
        if not dry_run:
            self._consumers.changed_all(namespace)
        return applied


class AnnouncingSchedule:
    """A `SchedulePort` whose messages are published on time, and for which hints are sent."""

    def __init__(
        self,
        port: SchedulePort,
        scheduler: Scheduler,
        touched: Callable[[tuple[Touched, ...]], None],
        now_us: Callable[[], int],
    ) -> None:
        self._port = port
        self._scheduler = scheduler
        self._touched = touched
        self._now_us = now_us

    async def schedule(
        self,
        namespace: str,
        messages: Sequence[NewMessage],
        moments: Sequence[Moment],
        idempotency_key: str | None,
        fingerprint: bytes,
    ) -> tuple[list[Scheduled], bool]:
        stored, replayed = await self._port.schedule(
            namespace, messages, moments, idempotency_key, fingerprint
        )
        for each in stored:
            self._scheduler.expect(max(0.0, (each.deliver_at_us - self._now_us()) / 1e6))
        return stored, replayed

    async def get(self, namespace: str, scheduled_id: int) -> Scheduled:
        return await self._port.get(namespace, scheduled_id)

    async def page(self, namespace: str, channel: str | None, after: int, limit: int) -> list[Scheduled]:
        return await self._port.page(namespace, channel, after, limit)

    async def cancel(self, namespace: str, scheduled_id: int) -> None:
        await self._port.cancel(namespace, scheduled_id)

    async def promote(self, namespace: str, scheduled_id: int) -> Appended:
        """Publish it now, and send hints."""
        appended, touched = await self._port.promote(namespace, scheduled_id)
        self._touched(touched)
        return appended


NO_LEASE = Receipt(0, 0, 0)
"""A receipt of no subscription: a transaction with it succeeds only if it was done before."""


class AnnouncingTransactions:
    """Implements `TransactionPort` over another one."""

    def __init__(self, port: TransactionPort, publisher: Publisher, consumers: Consumers) -> None:
        self._port = port
        self._publisher = publisher
        self._consumers = consumers

    async def transact(
        self, append: Append | None, receipts: Sequence[Receipt], places: Sequence[str]
    ) -> Appended:
        appended = await self._port.transact(append, receipts, places)
        if append is not None:
            self._publisher.announce(append, appended)
        if not appended.replayed:
            self._consumers.was_settled(receipts)
        return appended

    async def repeated(self, append: Append) -> Appended | None:
        """The earlier answer to a transaction with this key, if there was one."""
        try:
            return await self._port.transact(append, [NO_LEASE], [""])
        except GaplessError as error:
            if error.code is Code.TRANSACTION_CONFLICT:
                return None
            raise
