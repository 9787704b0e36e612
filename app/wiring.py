"""Puts one worker process together: adapters into engines, engines into loops."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from app import failpoints, measuring
from app.gatekeeping import Gatekeeper
from app.http_protocol import buffers, refusals
from app.memory import GivingBack
from app.settings import Settings
from app.standstill import Standstill
from app.telemetry import (
    BUFFERED,
    FEEDS,
    FORGED,
    GAVE_WAY,
    HEAD,
    HEARS,
    MEMBERS,
    REFUSED,
    REGRESSIONS,
    RESTARTS,
    SETTLED_ID,
    SETTLED_LAG,
    SETTLEMENTS_WAITING,
    SHELF,
    UNHINTED,
    UNSETTLED,
    WAITING,
)
from app.webhooks.push import Surroundings
from app.webhooks.runner import Webhooks
from app.webhooks.sender import Sender
from app.wire.encode import encode_message
from app.wire.receipts import ReceiptCodec
from cache.bus import RedisBus
from db.appender import Appender
from db.connect import DatabaseConfig, Pool
from db.dead_letters import DeadLetters
from db.deliveries import Deliveries
from db.history import History
from db.maintenance import Maintenance as MaintenanceAdapter
from db.namespaces import Namespaces
from db.policies import Policies
from db.presence import Presence
from db.reader import Reader
from db.scheduled import Schedule
from db.subscriptions import Subscriptions
from db.transactions import Transactions
from subscriptions.domain.delivery import Receipt, Touched
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, Appended
from subscriptions.engine.consumers import Consumers
from subscriptions.engine.entry import Entry
from subscriptions.engine.gate import Gate
from subscriptions.engine.hints import (
    MAX_COPIES_BYTES,
    ChannelHint,
    Copy,
    EphemeralHint,
    HintCodec,
    Hints,
    Replays,
    entries_of,
)
from subscriptions.engine.live import LiveEngine, LiveLimits
from subscriptions.engine.maintenance import Maintenance
from subscriptions.engine.managed import (
    ManagedDeadLetters,
    ManagedPolicies,
    ManagedSchedule,
    ManagedSubscriptions,
)
from subscriptions.engine.publisher import Publisher
from subscriptions.engine.reaper import Departures, Reaper, Scheduler

log = logging.getLogger(__name__)

PUBLISHERS = 2
PAGE_CONNECTIONS = 4
HISTORY_CONNECTIONS = 4
DELIVERY_CONNECTIONS = 4
DECISION_TIMEOUT_S = 10.0
"""Of a statement that decides: it may publish a dead letter, and a publisher must not stay for long."""
DEFINITION_CONNECTIONS = 2
IDENTITY_RETRY_S = 0.5
NO_LEASE = Receipt(0, 0, 0)
"""Of no subscription: a transaction with it goes through only if it was done before."""


class Service:
    """Everything a face may use. `start` returns at once; `ready` tells when it serves in full."""

    def __init__(self, settings: Settings) -> None:
        assert settings.database_url, "the supervisor has filled this in"
        self.settings = settings
        database = DatabaseConfig(settings.database_url)
        self._open_pools(settings.database_url)
        self.reader = Reader(self._pages, self._control)
        self.history = History(self._history_pool)
        self.maintenance = MaintenanceAdapter(self._maintenance_pool)
        self.namespace = settings.namespace
        self.gate = Gate()
        namespaces = Namespaces(self._defining)
        self._deliveries = Deliveries(self._deciding, namespaces)
        policies = Policies(self._defining, namespaces)
        create = settings.auto_create_channels
        schedule = Schedule(self._deciding, namespaces, create_channels=create)
        self._transactions = Transactions(self._deciding, namespaces, create_channels=create)
        found = Subscriptions(self._defining, namespaces, lambda: self.live.watermark.settled or None)
        self.gatekeeper = Gatekeeper(
            self.gate,
            self.maintenance,
            namespaces,
            policies,
            namespace=settings.namespace,
            file=settings.definitions,
            allow_private=settings.webhook_allow_private,
            auto_create=create,
        )
        self.live = LiveEngine(
            self.reader,
            encode_message,
            clock=time.monotonic,
            limits=LiveLimits(settings.max_streams, settings.tail_bytes),
        )
        self._appenders = [Appender(database, create_channels=create) for _ in range(PUBLISHERS)]
        self.publisher = Publisher(
            self._appenders, encode_message, self._committed, self._is_worth_telling, self.live.committed
        )
        self.consumers = Consumers(
            self._deliveries,
            found,
            clock=time.monotonic,
            now_us=_now_us,
            settle=self._settle,
            touched=self.touched,
            tell=self._settled,
            max_members=settings.max_streams,
        )
        self.live.on_history = self.consumers.history_changed
        self._presence = Presence(database, self.consumers.holder, self.consumers.look_after_leases)
        self.subscriptions = ManagedSubscriptions(
            found,
            self.consumers,
            lambda: self.webhooks.look_soon(),
            clock=time.monotonic,
            settle=self._settle,
        )
        sender = Sender(settings.webhook_allow_private)
        self.webhooks = Webhooks(self.gate, Surroundings(self.consumers, self.subscriptions, found, sender))
        self.policies = ManagedPolicies(policies, self.consumers)
        self.dead_letters = ManagedDeadLetters(DeadLetters(self._deciding, namespaces), self.consumers)
        self.scheduler = Scheduler(schedule, self.gate, clock=time.monotonic, touched=self.touched)
        self.schedules = ManagedSchedule(schedule, self.scheduler, self.touched, _now_us)
        self._receipts: ReceiptCodec | None = None
        self._identified = asyncio.Event()
        self._origin = secrets.token_hex(8)
        self._ephemeral_at_us = 0
        self._replays = Replays()
        self._codec: HintCodec | None = None
        self.bus: RedisBus | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def _open_pools(self, url: str) -> None:
        """One for each kind of work, so that none waits for another's connections."""
        database = DatabaseConfig(url)
        deciding = DatabaseConfig(url, statement_timeout_s=DECISION_TIMEOUT_S, small_tables=True)
        self._control = Pool(database, application="control", size=2)
        self._pages = Pool(database, application="pages", size=PAGE_CONNECTIONS)
        self._history_pool = Pool(database, application="history", size=HISTORY_CONNECTIONS)
        self._maintenance_pool = Pool(database, application="maintenance", size=1)
        self._deciding = Pool(deciding, application="deliveries", size=DELIVERY_CONNECTIONS)
        self._defining = Pool(database, application="definitions", size=DEFINITION_CONNECTIONS)

    async def start(self) -> None:
        """Begin all loops; none of them needs the database or Redis to be there yet."""
        self.publisher.start()
        self.consumers.start()
        touched, woken = self.touched, self._woken
        reaper = Reaper(self._deliveries, self.gate, settle=self._settle, touched=touched, woken=woken)
        departures = Departures(self._deliveries, self.gate, touched=touched, woken=woken)
        housekeeping = Maintenance(
            self.maintenance,
            lambda: self.live.watermark.settled,
            every_s=self.settings.maintenance_interval,
            segment_age_s=self.settings.segment_age,
            namespaces=lambda: self.gate.namespaces,
        )
        loops = (
            self.live.run(),
            self.live.beat(),
            housekeeping.run(),
            self._run_bus(),
            self._presence.run(),
            self._measure(),
            *self._measurements(),
            self._open_gate(),
            reaper.run(),
            departures.run(),
            self.scheduler.run(),
            self.webhooks.run(),
        )
        for loop in loops:
            self._begin(loop)

    def _begin(self, loop: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(loop)
        task.add_done_callback(_report)
        self._tasks.append(task)

    async def stop(self) -> None:
        """Answer publishes in flight, then end everything."""
        self.live.stop()
        await self.webhooks.stop()
        await self.consumers.stop()
        await self.publisher.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for appender in self._appenders:
            appender.terminate()
        for pool in (
            self._control,
            self._pages,
            self._history_pool,
            self._maintenance_pool,
            self._deciding,
            self._defining,
        ):
            await pool.close()

    async def ready(self) -> None:
        """Raises GaplessError unless migrated, definitions loaded, and the database reachable."""
        await self.gatekeeper.check()

    def require_ready(self) -> None:
        """Raises GaplessError `unavailable` for whatever decides about messages before it may."""
        self.gate.require()

    @property
    def receipts(self) -> ReceiptCodec:
        """Once the gate is open; see `require_ready`."""
        assert self._receipts is not None, "the gate opens after it is there"
        return self._receipts

    async def _open_gate(self) -> None:
        """Once receipts can be written: what is leased must be told."""
        await self._identified.wait()
        await self.gatekeeper.run()

    async def transact(self, append: Append | None, receipts: list[Receipt], places: list[str]) -> Appended:
        """Publish and ack, all of it or nothing; see `TransactionPort`."""
        appended = await self._transactions.transact(append, receipts, places)
        if append is not None:
            self.publisher.announce(append, appended)
        if not appended.replayed:
            self.consumers.was_settled(receipts)
        return appended

    async def repeated(self, append: Append) -> Appended | None:
        """What was answered before to a transaction with this key, if there was one."""
        try:
            return await self._transactions.transact(append, [NO_LEASE], [""])
        except GaplessError as error:
            if error.code is Code.TRANSACTION_CONFLICT:
                return None
            raise

    async def live_leases(self, receipts: Sequence[Receipt]) -> list[bool]:
        """Whether each still holds its lease."""
        return await self._deliveries.live(receipts)

    async def _settle(self) -> tuple[int, int]:
        """Where the watermark is, looked at now: the settled id, and the last id taken."""
        tick = await self.live.tick()
        return self.live.watermark.settled, tick.last_id

    def _measurements(self) -> list[Coroutine[Any, Any, None]]:
        """The first of a supervisor's workers measures what all would measure the same."""
        worker = os.environ.get("GAPLESS_WORKER_INDEX", "0")
        found = []
        if self.settings.workers > 1:
            found.append(measuring.process(SHELF, worker))
        if worker == "0":
            assert self.settings.database_url is not None
            url, settings = self.settings.database_url, self.settings
            most, every_s = settings.metrics_subscriptions, settings.metrics_interval
            found.append(measuring.subscriptions(url, SHELF, most=most, every_s=every_s))
        return found

    async def _measure(self) -> None:
        """Say once a second how full and how far behind everything is."""
        RESTARTS.set(int(os.environ.get("GAPLESS_WORKER_RESTARTS", "0")))
        giving_back = GivingBack()
        standstill, told, regressions = Standstill(), 0, 0
        while True:
            watermark = self.live.watermark
            FEEDS.set(len(self.live.feeds))
            WAITING.set(self.publisher.waiting)
            MEMBERS.set(self.consumers.members)
            SETTLEMENTS_WAITING.set(self.consumers.settling)
            UNSETTLED.set(max(0, watermark.last_id - watermark.settled))
            held_bytes, gave_way = buffers()
            BUFFERED.set(held_bytes)
            GAVE_WAY.set(gave_way)
            giving_back.look(held_bytes)
            HEAD.set(watermark.last_id)
            SETTLED_ID.set(watermark.settled)
            SETTLED_LAG.set(standstill.seen(watermark.settled, watermark.last_id, time.monotonic()))
            HEARS.set(self.bus is not None and self.bus.connected)
            UNHINTED.inc(self.live.unhinted - told)
            told = self.live.unhinted
            REGRESSIONS.inc(watermark.regressions - regressions)
            regressions = watermark.regressions
            for code, count in refusals.items():
                REFUSED.labels(code.value).set(count)
            await asyncio.sleep(1.0)

    # --- hints

    async def _run_bus(self) -> None:
        """Exchange hints with the other processes that read this history of this very database. A copy of it,
        a restored one, or the primary before a failover has hints of its own: theirs are never heard."""
        assert self.settings.redis_url is not None
        await failpoints.reach("log.identity")
        secret = await self._learn_secret()
        self._receipts = ReceiptCodec(secret)
        self._identified.set()
        while True:
            await self.live.moved.wait()
            self.live.moved.clear()
            identity = self.live.identity
            self._codec = HintCodec(secret, identity)
            self.bus = RedisBus(
                self.settings.redis_url, f"gapless:{identity}:hints", self._heard, self.live.sweep_soon
            )
            running = asyncio.create_task(self.bus.run())
            moved = asyncio.create_task(self.live.moved.wait())
            try:
                await asyncio.wait([running, moved], return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    running.result()
            finally:
                for task in (running, moved):
                    task.cancel()
                await asyncio.gather(running, moved, return_exceptions=True)

    async def _learn_secret(self) -> bytes:
        while True:
            try:
                return await self.reader.hint_secret()
            except GaplessError:
                await asyncio.sleep(IDENTITY_RETRY_S)

    def _is_worth_telling(self, namespace: str, channel: str) -> bool:
        return (
            self.live.follows(namespace, channel)
            or self.consumers.follows(namespace, channel)
            or self._is_heard()
        )

    def _committed(self, hints: list[tuple[ChannelHint, list[Entry]]]) -> None:
        """Tell this process's readers, then the others. The commit is done and answered already."""
        self.live.hear(hints)
        self._hear_for_consumers([hint for hint, _ in hints])
        if self._is_heard():
            channels = [hint for hint, _ in hints]
            if sum(len(entry.body) for _, entries in hints for entry in entries) > MAX_COPIES_BYTES:
                channels = [_without_copies(hint) for hint in channels]
            self._send(Hints(self._origin, channels, []))

    def _is_heard(self) -> bool:
        """Whether another process may listen."""
        return self.bus is not None and not self.bus.alone

    def _send(self, hints: Hints) -> None:
        """Tell the other processes, once the bus is that of the history that is read."""
        if self.bus is not None and self._codec is not None and self._codec.is_of(self.live.identity):
            self.bus.send(self._codec.encode(hints))

    def _hear_for_consumers(self, hints: list[ChannelHint]) -> None:
        for hint in hints:
            if hint.copies:
                self.consumers.hear(hint.namespace, hint.channel, hint.copies[-1].id)

    def touched(self, touched: tuple[Touched, ...]) -> None:
        """The database published by itself: tell of it without copies."""
        hints: list[tuple[ChannelHint, list[Entry]]] = []
        for t in touched:
            bare = Copy(t.last_id, t.last_seq, "", None, None)
            hints.append((ChannelHint(t.namespace, t.channel, t.channel_id, 0, 0, [bare]), []))
        if hints:
            self._committed(hints)

    def _woken(self, subscription_id: int) -> None:
        self.consumers.hear_settled([subscription_id], ())

    def _settled(self, subscription_ids: list[int], receipts: list[Receipt]) -> None:
        """Tell the other processes what was settled here, and which of it they stream."""
        if subscription_ids and self._is_heard():
            leases = [(r.subscription_id, r.message_id, r.lease) for r in receipts]
            self._send(Hints(self._origin, [], [], subscription_ids, leases))

    def publish_ephemeral(self, hint: EphemeralHint) -> None:
        """Hand a message that is not stored to every process's listeners, as far as they can be reached."""
        self.live.hear_ephemeral(hint)
        self._ephemeral_at_us = max(_now_us(), self._ephemeral_at_us + 1)
        self._send(Hints(self._origin, [], [hint], sent_at_us=self._ephemeral_at_us))

    def _heard(self, payload: bytes) -> None:
        assert self._codec is not None, "the bus starts after the codec is there"
        hints = self._codec.decode(payload)
        if hints is None:
            FORGED.inc()
            return
        if hints.origin == self._origin or not self._codec.is_of(self.live.identity):
            return
        self.live.hear((hint, entries_of(hint)) for hint in hints.channels)
        self._hear_for_consumers(hints.channels)
        self.consumers.hear_settled(hints.woken, [Receipt(*lease) for lease in hints.settled])
        if hints.ephemeral and not self._replays.is_new(hints, _now_us()):
            FORGED.inc()
            return
        for ephemeral in hints.ephemeral:
            self.live.hear_ephemeral(ephemeral)


def _now_us() -> int:
    return time.time_ns() // 1000


def _without_copies(hint: ChannelHint) -> ChannelHint:
    last = hint.copies[-1]
    bare = [Copy(last.id, last.seq, last.type, None, None)]
    return ChannelHint(hint.namespace, hint.channel, hint.channel_id, hint.after_id, hint.after_seq, bare)


def _report(task: asyncio.Task[None]) -> None:
    """A loop that ends by an error takes the process with it: the supervisor starts a fresh one."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("a loop of the service ended", exc_info=error)
        raise SystemExit(1)
