"""Builds one worker process: connects adapters to engines, and engines to loops."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from functools import partial

from app import failpoints, levels, measuring
from app.gatekeeping import Gatekeeper
from app.loops import Loops, Run
from app.settings import Settings
from app.telemetry import (
    SHELF,
)
from app.webhooks.push import PushDependencies
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
from subscriptions.domain.errors import GaplessError
from subscriptions.engine.durable.announcing import (
    AnnouncingDeadLetters,
    AnnouncingPolicies,
    AnnouncingSchedule,
    AnnouncingSubscriptions,
    AnnouncingTransactions,
)
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.durable.reaper import Departures, Reaper, Scheduler
from subscriptions.engine.exchange import Exchange
from subscriptions.engine.gate import Gate
from subscriptions.engine.live.engine import LiveEngine, LiveLimits
from subscriptions.engine.maintenance import Maintenance
from subscriptions.engine.publisher import Publisher

log = logging.getLogger(__name__)

PUBLISHERS = 2
PAGE_CONNECTIONS = 4
HISTORY_CONNECTIONS = 4
DELIVERY_CONNECTIONS = 4
DECISION_TIMEOUT_S = 10.0
"""Timeout of a statement that decides. It may publish a dead letter, and a publisher must not block long."""
DEFINITION_CONNECTIONS = 2
IDENTITY_RETRY_S = 0.5


class Service:
    """All that faces use. `start` returns at once; `ready` says whether the service works in full."""

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
        self.exchange = Exchange(self.live, self._open_bus, now_us=_now_us)
        self._appenders = [Appender(database, create_channels=create) for _ in range(PUBLISHERS)]
        self.publisher = Publisher(
            self._appenders,
            encode_message,
            self.exchange.committed,
            self.exchange.is_worth_telling,
            self.live.committed,
        )
        self.consumers = Consumers(
            self._deliveries,
            found,
            clock=time.monotonic,
            now_us=_now_us,
            look=self.live.look,
            touched=self.exchange.touched,
            tell=self.exchange.settled,
            max_members=settings.max_streams,
        )
        self.exchange.listen(self.consumers)
        self.live.on_history = self.consumers.history_changed
        self._presence = Presence(database, self.consumers.holder, self.consumers.look_after_leases)
        self._announce(found, policies, namespaces)
        self._receipts: ReceiptCodec | None = None
        self._loops = Loops()

    def _announce(self, found: Subscriptions, policies: Policies, namespaces: Namespaces) -> None:
        """Registers callbacks, so that the loops of this process learn of changes that faces make."""
        create = self.settings.auto_create_channels
        self.subscriptions = AnnouncingSubscriptions(
            found,
            self.consumers,
            lambda: self.webhooks.look_soon(),
            clock=time.monotonic,
            look=self.live.look,
        )
        sender = Sender(self.settings.webhook_allow_private)
        self.webhooks = Webhooks(
            self.gate, PushDependencies(self.consumers, self.subscriptions, found, sender, encode_message)
        )
        transactions = Transactions(self._deciding, namespaces, create_channels=create)
        schedule = Schedule(self._deciding, namespaces, create_channels=create)
        self.transactions = AnnouncingTransactions(transactions, self.publisher, self.consumers)
        self.policies = AnnouncingPolicies(policies, self.consumers)
        self.dead_letters = AnnouncingDeadLetters(DeadLetters(self._deciding, namespaces), self.consumers)
        self.scheduler = Scheduler(schedule, self.gate, clock=time.monotonic, touched=self.exchange.touched)
        self.schedules = AnnouncingSchedule(schedule, self.scheduler, self.exchange.touched, _now_us)

    def _open_pools(self, url: str) -> None:
        """Opens one pool for each kind of work, so that none waits for another's connections."""
        database = DatabaseConfig(url)
        deciding = DatabaseConfig(url, statement_timeout_s=DECISION_TIMEOUT_S, small_tables=True)
        self._control = Pool(database, application="control", size=2)
        self._pages = Pool(database, application="pages", size=PAGE_CONNECTIONS)
        self._history_pool = Pool(database, application="history", size=HISTORY_CONNECTIONS)
        self._maintenance_pool = Pool(database, application="maintenance", size=1)
        self._deciding = Pool(deciding, application="deliveries", size=DELIVERY_CONNECTIONS)
        self._defining = Pool(database, application="definitions", size=DEFINITION_CONNECTIONS)

    def __repr__(self) -> str:
        return (
            f"Service({self.gate!r}, {self.live!r}, {self.publisher!r}, {self.consumers!r}, {self._loops!r})"
        )

    async def start(self) -> None:
        """Starts all loops; none of them needs the database or Redis at this moment."""
        self.publisher.start()
        self.consumers.start()
        touched, woken = self.exchange.touched, self.exchange.woken
        reaper = Reaper(self._deliveries, self.gate, look=self.live.look, touched=touched, woken=woken)
        departures = Departures(self._deliveries, self.gate, touched=touched, woken=woken)
        housekeeping = Maintenance(
            self.maintenance,
            lambda: self.live.watermark.settled,
            every_s=self.settings.maintenance_interval,
            segment_age_s=self.settings.segment_age,
            namespaces=lambda: self.gate.namespaces,
        )
        for name, run in (
            ("live", self.live.run),
            ("heartbeats", self.live.beat),
            ("maintenance", housekeeping.run),
            ("identify", self._identify),
            ("presence", self._presence.run),
            ("levels", lambda: levels.tell(self.live, self.publisher, self.consumers, self.exchange)),
            ("reaper", reaper.run),
            ("departures", departures.run),
            ("scheduler", self.scheduler.run),
            ("webhooks", self.webhooks.run),
            *self._measurements(),
        ):
            self._loops.start(name, run)

    async def stop(self) -> None:
        """Answers publishes in flight, then ends all loops."""
        self.live.stop()
        await self.webhooks.stop()
        await self.consumers.stop()
        await self.publisher.stop()
        await self._loops.stop()
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
        """Raises GaplessError `unavailable` while decisions about messages are not allowed yet."""
        self.gate.require()

    @property
    def receipts(self) -> ReceiptCodec:
        """The codec of receipts, once the gate is open; see `require_ready`."""
        assert self._receipts is not None, "the gate opens after it is there"
        return self._receipts

    def _measurements(self) -> list[tuple[str, Run]]:
        """The measurements. Only a supervisor's first worker measures values that are the same for all."""
        worker = os.environ.get("GAPLESS_WORKER_INDEX", "0")
        found: list[tuple[str, Run]] = []
        if self.settings.workers > 1:
            found.append(("measure the process", partial(measuring.process, SHELF, worker)))
        if worker == "0":
            assert self.settings.database_url is not None
            url, settings = self.settings.database_url, self.settings
            most, every_s = settings.metrics_subscriptions, settings.metrics_interval
            measure = partial(measuring.subscriptions, url, SHELF, most=most, every_s=every_s)
            found.append(("measure subscriptions", measure))
        return found

    async def _identify(self) -> None:
        """Reads the secret that signs receipts and hints, then opens the gate: leases need receipts."""
        await failpoints.reach("log.identity")
        secret = await self._learn_secret()
        self._receipts = ReceiptCodec(secret)
        self._loops.start("exchange", lambda: self.exchange.run(secret))
        await self.gatekeeper.run()

    async def _learn_secret(self) -> bytes:
        while True:
            try:
                return await self.reader.hint_secret()
            except GaplessError:
                await asyncio.sleep(IDENTITY_RETRY_S)

    def _open_bus(
        self, identity: str, heard: Callable[[bytes], None], maybe_missed: Callable[[], None]
    ) -> RedisBus:
        assert self.settings.redis_url is not None, "the supervisor has filled this in"
        return RedisBus(self.settings.redis_url, f"gapless:{identity}:hints", heard, maybe_missed)


def _now_us() -> int:
    return time.time_ns() // 1000
