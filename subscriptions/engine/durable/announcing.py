"""Changes of definitions, dead letters and scheduled messages that also wake the groups that wait here. What
only reads, or changes nothing that anybody waits for, asks the `port` of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from subscriptions.domain.claiming import SETTLE_S, WATCH_S
from subscriptions.domain.delivery import (
    Change,
    DeadLetterFilter,
    Definition,
    Definitions,
    Moment,
    Policy,
    Receipt,
    Scheduled,
    Settings,
    Subscription,
    Tags,
    Touched,
)
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, Appended, NewMessage
from subscriptions.domain.principal import Principal
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.durable.reaper import Scheduler
from subscriptions.engine.maintenance import audit
from subscriptions.engine.publisher import Publisher
from subscriptions.ports import (
    Clock,
    DeadLetterPort,
    PolicyPort,
    ReadWatermark,
    SchedulePort,
    SubscriptionPort,
    TransactionPort,
)


class AnnouncingSubscriptions:
    """Changes of subscriptions over their port. `on_change` is called when one has changed;
    `read_watermark()` asks where the log stands."""

    def __init__(
        self,
        port: SubscriptionPort,
        consumers: Consumers,
        on_change: Callable[[], None],
        *,
        clock: Clock,
        read_watermark: ReadWatermark,
    ) -> None:
        self.port = port
        self._consumers = consumers
        self._on_change = on_change
        self._clock = clock
        self._read_watermark = read_watermark

    async def put(
        self, namespace: str, definition: Definition, *, if_match: Tags | None = None, if_absent: bool = False
    ) -> tuple[Subscription, bool]:
        put = await self.port.put(namespace, definition, if_match=if_match, if_absent=if_absent)
        if if_match is not None:
            self._consumers.changed(namespace, definition.name, put[0].id)
        self._on_change()
        return put

    async def patch(
        self,
        namespace: str,
        name: str,
        channels: tuple[str, ...] | None,
        settings: Settings,
        *,
        if_match: Tags | None = None,
    ) -> Subscription:
        patched = await self.port.patch(namespace, name, channels, settings, if_match=if_match)
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
        changed = await self.port.bind(namespace, name, channels, bound, if_match=if_match)
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
            await self._consumers.attendance.registered()
        await self.port.delete(namespace, name, if_match=if_match, if_empty=if_empty, if_unused=if_unused)
        self._changed(namespace, name)

    async def purge(self, namespace: str, name: str, *, if_match: Tags | None = None) -> int:
        """Purge the messages that were committed before this call. It waits `SETTLE_S` at most until they are
        settled."""
        settled, last_id = await self._read_watermark()
        until = self._clock() + SETTLE_S
        while settled < last_id and self._clock() < until:
            await asyncio.sleep(WATCH_S)
            settled, _ = await self._read_watermark()
        purged = await self.port.purge(namespace, name, settled, if_match=if_match)
        audit.info("subscription %s of %s was purged: %d messages", name, namespace, purged)
        self._consumers.changed(namespace, name)
        return purged

    async def seek(self, namespace: str, name: str, to: str, *, if_match: Tags | None = None) -> Subscription:
        moved = await self.port.seek(namespace, name, to, if_match=if_match)
        self._consumers.changed(namespace, name, moved.id)
        return moved

    async def pause(
        self, namespace: str, name: str, paused: bool, *, if_match: Tags | None = None
    ) -> Subscription:
        stopped = await self.port.pause(namespace, name, paused, if_match=if_match)
        self._changed(namespace, name, stopped.id)
        return stopped

    async def pause_pushed(self, namespace: str, name: str, url: str) -> bool:
        paused = await self.port.pause_pushed(namespace, name, url)
        if paused:
            self._changed(namespace, name)
        return paused

    def _changed(self, namespace: str, name: str, subscription_id: int | None = None) -> None:
        self._consumers.changed(namespace, name, subscription_id)
        self._on_change()


class AnnouncingDeadLetters:
    """Replays over the port of dead letters."""

    def __init__(self, port: DeadLetterPort, consumers: Consumers) -> None:
        self.port = port
        self._consumers = consumers

    async def replay(self, namespace: str, dead_letter_id: int) -> tuple[str, int]:
        name, message_id = await self.port.replay(namespace, dead_letter_id)
        self._consumers.changed(namespace, name)
        return name, message_id

    async def replay_all(
        self, which: DeadLetterFilter, most: int | None = None, rate: float | None = None
    ) -> tuple[int, int]:
        replayed = await self.port.replay_all(which, most, rate)
        self._consumers.changed_all(which.namespace)
        return replayed


class AnnouncingPolicies:
    """Changes of policies and definitions over their port."""

    def __init__(self, port: PolicyPort, consumers: Consumers) -> None:
        self.port = port
        self._consumers = consumers

    async def put(
        self, namespace: str, policy: Policy, *, if_match: Tags | None = None, if_absent: bool = False
    ) -> tuple[bool, str]:
        made = await self.port.put(namespace, policy, if_match=if_match, if_absent=if_absent)
        self._consumers.changed_all(namespace)
        return made

    async def delete(self, namespace: str, name: str, *, if_match: Tags | None = None) -> None:
        await self.port.delete(namespace, name, if_match=if_match)
        self._consumers.changed_all(namespace)

    async def apply(
        self, namespace: str, wanted: Definitions, *, dry_run: bool, if_match: Tags | None = None
    ) -> tuple[list[Change], int]:
        applied = await self.port.apply(namespace, wanted, dry_run=dry_run, if_match=if_match)
        if not dry_run:
            self._consumers.changed_all(namespace)
        return applied


class AnnouncingSchedule:
    """Scheduling over its port: messages are published on time, and hints are sent for them."""

    def __init__(
        self,
        port: SchedulePort,
        scheduler: Scheduler,
        touched: Callable[[tuple[Touched, ...]], None],
        now_us: Callable[[], int],
    ) -> None:
        self.port = port
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
        by: Principal,
    ) -> tuple[list[Scheduled], bool]:
        stored, replayed = await self.port.schedule(
            namespace, messages, moments, idempotency_key, fingerprint, by
        )
        for each in stored:
            self._scheduler.expect(max(0.0, (each.deliver_at_us - self._now_us()) / 1e6))
        return stored, replayed

    async def promote(self, namespace: str, scheduled_id: int) -> Appended:
        """Publish it now, and send hints."""
        appended, touched = await self.port.promote(namespace, scheduled_id)
        self._touched(touched)
        return appended


NO_LEASE = Receipt(0, 0, 0)
"""A receipt of no subscription: a transaction with it succeeds only if it was done before."""


class AnnouncingTransactions:
    """Transactions over their port."""

    def __init__(self, port: TransactionPort, publisher: Publisher, consumers: Consumers) -> None:
        self.port = port
        self._publisher = publisher
        self._consumers = consumers

    async def transact(
        self, append: Append | None, receipts: Sequence[Receipt], places: Sequence[str]
    ) -> Appended:
        appended = await self.port.transact(append, receipts, places)
        if append is not None:
            self._publisher.announce(append, appended)
        if not appended.replayed:
            self._consumers.was_settled(receipts)
        return appended

    async def repeated(self, append: Append) -> Appended | None:
        """The earlier answer to a transaction with this key, if there was one."""
        try:
            return await self.port.transact(append, [NO_LEASE], [""])
        except GaplessError as error:
            if error.code is Code.TRANSACTION_CONFLICT:
                return None
            raise
