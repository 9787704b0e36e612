"""Builds one worker process: connects adapters to engines, and engines to loops."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from functools import partial

from app.api.settings import PushRules
from app.faces.acks import Acks
from app.faces.deliveries import MemberDependencies
from app.faces.webhooks.push import PushDependencies
from app.faces.webhooks.runner import Webhooks
from app.faces.webhooks.secrets import webhook_secrets
from app.faces.webhooks.sender import Sender
from app.faces.websocket.consuming import Queues
from app.faces.websocket.session import Parts
from app.faces.websocket.sessions import Sessions
from app.http.principals import Principals
from app.message.message import encode_message
from app.message.receipts import ReceiptCodec
from app.metrics import measuring
from app.metrics.registry import SNAPSHOTS
from app.process import failpoints, gauges
from app.process.dependencies import Dependencies
from app.process.loops import Loops, Run
from app.process.pools import Pools
from app.process.readiness import Gatekeeper, Served
from app.process.settings import Settings
from cache.bus import RedisBus
from cache.presence import RedisPresence
from db.appender import Appender
from db.channels import Channels
from db.connect import DatabaseConfig
from db.dead_letters import DeadLetters
from db.deliveries import Deliveries
from db.history import History
from db.keys import Keys
from db.liveness import Liveness
from db.maintenance import Maintenance as MaintenanceAdapter
from db.markers import Markers
from db.namespaces import Namespaces
from db.policies import Policies
from db.reader import Reader
from db.scheduled import Schedule
from db.subscriptions import Subscriptions
from db.tickets import Tickets
from db.transactions import Transactions
from db.views import Views
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.presence import Clients
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
from subscriptions.engine.presence import Presence
from subscriptions.engine.publisher import Publisher

log = logging.getLogger(__name__)

PUBLISHERS = 2
IDENTITY_RETRY_S = 0.5
SECRETS_S = 1.0
SECRETS_GOOD_S = 5.0
"""A new secret signs 10 s after it was made (`gapless.rotate_secret`), so who knew all of them 5 s ago knows
all that sign now."""


class Service:
    """The parts of one worker. Faces use its `dependencies`. `start` returns at once; the gate opens once the
    service works in full."""

    def __init__(self, settings: Settings, principals: Principals) -> None:
        assert settings.database_url, "the supervisor has filled this in"
        self._settings = settings
        self._principals = principals
        self._pools = pools = Pools(settings.database_url)
        self._reader = Reader(pools.pages, pools.control, pools.ticks)
        self._maintenance = MaintenanceAdapter(pools.maintenance)
        self._gate = Gate()
        self._namespaces = Namespaces(pools.defining)
        self._keys = Keys(pools.control, self._namespaces)
        principals.bind(self._keys, Tickets(pools.control, self._namespaces))
        self._deliveries = Deliveries(pools.deciding, self._namespaces)
        self._live = LiveEngine(
            self._reader,
            encode_message,
            clock=time.monotonic,
            limits=LiveLimits(settings.max_streams, settings.tail_bytes),
            on_history=self._history_changed,
        )
        self._exchange = Exchange(self._live, self._open_bus, now_us=_now_us)
        self._presence = Presence(
            self._live, self._exchange, self._open_presence, clock=time.monotonic, now_us=_now_us
        )
        database = DatabaseConfig(settings.database_url)
        create = settings.auto_create_channels
        self._appenders = [Appender(database, create_channels=create) for _ in range(PUBLISHERS)]
        self._publisher = Publisher(
            self._appenders,
            encode_message,
            self._exchange.committed,
            self._exchange.is_worth_telling,
            self._live.committed,
        )
        self._subscriptions = Subscriptions(
            pools.defining, self._namespaces, lambda: self._live.watermark.settled or None
        )
        self._consumers = Consumers(
            self._deliveries,
            self._subscriptions,
            clock=time.monotonic,
            now_us=_now_us,
            read_watermark=self._live.read_watermark,
            touched=self._exchange.touched,
            tell=self._exchange.settled,
            max_members=settings.max_streams,
        )
        self._liveness = Liveness(database, self._consumers.holder, self._consumers.look_after_leases)
        self._dead_letters = AnnouncingDeadLetters(
            DeadLetters(pools.deciding, self._namespaces), self._consumers
        )
        self._receipts = ReceiptCodec()
        self._loops = Loops()
        self.dependencies = self._depend()
        self._exchange.listen(self._consumers, self._presence.hear, self._sessions.received)

    def _depend(self) -> Dependencies:
        """What faces use. The announcing adapters tell the loops of this process what faces change."""
        settings, create, pools = self._settings, self._settings.auto_create_channels, self._pools
        policies, changed = Policies(pools.defining, self._namespaces), asyncio.Event()
        rules = PushRules(settings.webhook_allow_private, webhook_secrets(settings.webhook_keys))
        self._gatekeeper = Gatekeeper(
            self._gate,
            self._maintenance,
            self._namespaces,
            policies,
            served=Served(settings.namespace, settings.definitions),
            push_rules=rules,
            auto_create=create,
            credentials=self._principals.look,
        )
        subscriptions = AnnouncingSubscriptions(
            self._subscriptions,
            self._consumers,
            changed.set,
            clock=time.monotonic,
            read_watermark=self._live.read_watermark,
        )
        self._webhooks = Webhooks(
            self._gate,
            PushDependencies(
                *(self._consumers, subscriptions, self._subscriptions),
                *(Sender(settings.webhook_allow_private), encode_message, rules.secrets),
                self._principals.is_good,
            ),
            changed,
        )
        transactions = Transactions(pools.deciding, self._namespaces, create_channels=create)
        schedule = Schedule(pools.deciding, self._namespaces, create_channels=create)
        touched, history = self._exchange.touched, History(pools.history)
        self._scheduler = Scheduler(schedule, self._gate, clock=time.monotonic, touched=touched)
        acks = Acks(self._consumers, self._receipts)
        members = MemberDependencies(self._consumers, self._receipts, self._reader)
        self._sessions = Sessions(
            Parts(
                *(self._live, self._reader, self._publisher, self._exchange),
                *(history, self._presence, Queues(members, acks, self._gate), self._principals),
            )
        )
        return Dependencies(
            publisher=self._publisher,
            exchange=self._exchange,
            live=self._live,
            read=self._reader,
            history=history,
            views=Views(pools.history),
            markers=Markers(pools.history, self._namespaces),
            channels=Channels(pools.history, self._namespaces),
            consumers=self._consumers,
            receipts=self._receipts,
            acks=acks,
            subscriptions=subscriptions,
            policies=AnnouncingPolicies(policies, self._consumers),
            dead_letters=self._dead_letters,
            schedules=AnnouncingSchedule(schedule, self._scheduler, touched, _now_us),
            transactions=AnnouncingTransactions(transactions, self._publisher, self._consumers),
            presence=self._presence,
            sessions=self._sessions,
            gate=self._gate,
            readiness=self._gatekeeper,
            push_rules=rules,
            keys=self._keys,
            namespaces=self._namespaces,
            principals=self._principals,
        )

    def __repr__(self) -> str:
        parts = self._gate, self._live, self._publisher, self._consumers, self._loops
        return f"Service({', '.join(map(repr, parts))})"

    async def start(self) -> None:
        """Starts all loops; none of them needs the database or Redis at this moment."""
        self._publisher.start()
        self._consumers.start()
        touched, woken = self._exchange.touched, self._exchange.woken
        reaper = Reaper(
            self._deliveries,
            self._gate,
            read_watermark=self._live.read_watermark,
            touched=touched,
            woken=woken,
        )
        departures = Departures(self._deliveries, self._gate, touched=touched, woken=woken)
        housekeeping = Maintenance(
            self._maintenance,
            lambda: self._live.watermark.settled,
            every_s=self._settings.maintenance_interval,
            segment_age_s=self._settings.segment_age,
            namespaces=lambda: self._gate.namespaces,
        )
        for name, run in (
            ("live", self._live.run),
            ("heartbeats", self._live.beat),
            ("maintenance", housekeeping.run),
            ("identify", self._identify),
            ("credentials", self._principals.run),
            ("liveness", self._liveness.run),
            ("presence", self._presence.run),
            (
                "levels",
                lambda: gauges.tell(
                    self._live, self._publisher, self._consumers, self._exchange, self._presence
                ),
            ),
            ("reaper", reaper.run),
            ("departures", departures.run),
            ("scheduler", self._scheduler.run),
            ("webhooks", self._webhooks.run),
            ("websockets", self._sessions.run),
            *self._measurements(),
        ):
            self._loops.start(name, run)

    async def stop(self) -> None:
        """Answers publishes in flight, then ends all loops."""
        self._live.stop()
        await self._webhooks.stop()
        await self._consumers.stop()
        await self._publisher.stop()
        await self._loops.stop()
        await self._presence.stop()
        for appender in self._appenders:
            appender.terminate()
        await self._pools.close()

    def _history_changed(self, seen: int) -> None:
        self._namespaces.forget()
        self._consumers.history_changed(seen)

    async def opened(self) -> None:
        """Wait until the definitions are loaded."""
        await self._gate.passed()

    def dismiss(self) -> None:
        """Tell streams, members and webhooks that this process stops."""
        self._live.stop()
        self._webhooks.dismiss()
        # Before their connections, which would end members as their clients do: with a strike.
        self._consumers.dismiss()
        self._sessions.stop()

    def _measurements(self) -> list[tuple[str, Run]]:
        """The measurements. Only a supervisor's first worker measures values that are the same for all."""
        worker = os.environ.get("GAPLESS_WORKER_INDEX", "0")
        found: list[tuple[str, Run]] = []
        if self._settings.workers > 1:
            found.append(("measure the process", partial(measuring.process, SNAPSHOTS, worker)))
        if worker == "0":
            assert self._settings.database_url is not None
            url, settings = self._settings.database_url, self._settings
            most, every_s = settings.metrics_subscriptions, settings.metrics_interval
            measure = partial(measuring.subscriptions, url, SNAPSHOTS, most=most, every_s=every_s)
            found.append(("measure subscriptions", measure))
        return found

    async def _identify(self) -> None:
        """Reads the secrets that sign receipts and hints, then opens the gate: leases need receipts."""
        await failpoints.reach("log.identity")
        while True:
            if await self._learn_secrets():
                break
            await asyncio.sleep(IDENTITY_RETRY_S)
        self._loops.start("exchange", self._exchange.run)
        self._loops.start("secrets", self._follow_secrets)
        await self._gatekeeper.run()

    async def _follow_secrets(self) -> None:
        while True:
            await asyncio.sleep(SECRETS_S)
            await self._learn_secrets()

    async def _learn_secrets(self) -> bool:
        """Whether the secrets of receipts and hints could be read."""
        asked_at = time.monotonic()
        try:
            secrets = await self._reader.signing_secrets()
        except GaplessError:
            return False
        self._receipts.learn(secrets.receipts, good_until=asked_at + SECRETS_GOOD_S)
        self._exchange.learn(secrets.hints)
        return True

    def _open_bus(
        self, identity: str, node: str, heard: Callable[[bytes], None], maybe_missed: Callable[[], None]
    ) -> RedisBus:
        assert self._settings.redis_url is not None, "the supervisor has filled this in"
        return RedisBus(self._settings.redis_url, f"gapless:{identity}:hints", node, heard, maybe_missed)

    def _open_presence(self, identity: str, process: str, clients: Clients) -> RedisPresence:
        settings = self._settings
        assert settings.redis_url is not None, "the supervisor has filled this in"
        topic = f"gapless:{identity}:presence"
        return RedisPresence(settings.redis_url, topic, process, clients, settings.presence_expiry)


def _now_us() -> int:
    return time.time_ns() // 1000
