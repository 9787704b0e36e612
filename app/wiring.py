"""Puts one worker process together: adapters into engines, engines into loops."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Coroutine
from typing import Any

from app.http_protocol import refusals
from app.settings import Settings
from app.telemetry import FEEDS, FORGED, REFUSED, RESTARTS, UNSETTLED, WAITING
from app.wire.encode import encode_message
from cache.bus import RedisBus
from db.appender import Appender
from db.connect import DatabaseConfig, Pool
from db.history import History
from db.maintenance import Maintenance as MaintenanceAdapter
from db.migrate import migrations
from db.reader import Reader
from subscriptions.domain.errors import GaplessError, unavailable
from subscriptions.engine.entry import Entry
from subscriptions.engine.hints import (
    MAX_COPIES_BYTES,
    ChannelHint,
    Copy,
    EphemeralHint,
    HintCodec,
    Hints,
    entries_of,
)
from subscriptions.engine.live import LiveEngine, LiveLimits
from subscriptions.engine.maintenance import Maintenance
from subscriptions.engine.publisher import Publisher

log = logging.getLogger(__name__)

PUBLISHERS = 2
PAGE_CONNECTIONS = 4
HISTORY_CONNECTIONS = 4
IDENTITY_RETRY_S = 0.5


class Service:
    """Everything a face may use. `start` returns at once; `ready` tells when it serves in full."""

    def __init__(self, settings: Settings) -> None:
        assert settings.database_url, "the supervisor has filled this in"
        self.settings = settings
        database = DatabaseConfig(settings.database_url)
        self._control = Pool(database, application="control", size=2)
        self._pages = Pool(database, application="pages", size=PAGE_CONNECTIONS)
        self._history_pool = Pool(database, application="history", size=HISTORY_CONNECTIONS)
        self._maintenance_pool = Pool(database, application="maintenance", size=1)
        self.reader = Reader(self._pages, self._control)
        self.history = History(self._history_pool)
        self.maintenance = MaintenanceAdapter(self._maintenance_pool)
        self.live = LiveEngine(
            self.reader,
            encode_message,
            clock=time.monotonic,
            limits=LiveLimits(settings.max_streams, settings.tail_bytes),
        )
        self._appenders = [
            Appender(database, create_channels=settings.auto_create_channels) for _ in range(PUBLISHERS)
        ]
        self.publisher = Publisher(self._appenders, encode_message, self._committed, self._is_worth_telling)
        self._origin = secrets.token_hex(8)
        self._codec: HintCodec | None = None
        self.bus: RedisBus | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin all loops; none of them needs the database or Redis to be there yet."""
        self.publisher.start()
        housekeeping = Maintenance(
            self.maintenance,
            lambda: self.live.watermark.settled,
            every_s=self.settings.maintenance_interval,
            segment_age_s=self.settings.segment_age,
        )
        loops = (self.live.run(), self.live.beat(), housekeeping.run(), self._run_bus(), self._measure())
        for loop in loops:
            self._begin(loop)

    def _begin(self, loop: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(loop)
        task.add_done_callback(_report)
        self._tasks.append(task)

    async def stop(self) -> None:
        """Answer publishes in flight, then end everything."""
        self.live.stop()
        await self.publisher.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for appender in self._appenders:
            appender.terminate()
        for pool in (self._control, self._pages, self._history_pool, self._maintenance_pool):
            await pool.close()

    async def ready(self) -> None:
        """Raises GaplessError unless migrated and the database reachable."""
        version = await self.maintenance.schema_version()
        if version != len(migrations()):
            raise unavailable(f"the schema is at version {version}, this program needs {len(migrations())}")

    async def _measure(self) -> None:
        """Say once a second how full and how far behind everything is."""
        RESTARTS.set(int(os.environ.get("GAPLESS_WORKER_RESTARTS", "0")))
        while True:
            watermark = self.live.watermark
            FEEDS.set(len(self.live.feeds))
            WAITING.set(self.publisher.waiting)
            UNSETTLED.set(max(0, watermark.last_id - watermark.settled))
            for code, count in refusals.items():
                REFUSED.labels(code.value).set(count)
            await asyncio.sleep(1.0)

    # --- hints

    async def _run_bus(self) -> None:
        """Learn the log's identity, then exchange hints with the other processes."""
        assert self.settings.redis_url is not None
        while True:
            try:
                epoch, secret = await self.reader.log_identity()
                break
            except GaplessError:
                await asyncio.sleep(IDENTITY_RETRY_S)
        self._codec = HintCodec(secret)
        topic = f"gapless:{epoch}:hints"
        self.bus = RedisBus(self.settings.redis_url, topic, self._heard, self.live.sweep_soon)
        await self.bus.run()

    def _is_worth_telling(self, namespace: str, channel: str) -> bool:
        return self.live.follows(namespace, channel) or (self.bus is not None and not self.bus.alone)

    def _committed(self, hints: list[tuple[ChannelHint, list[Entry]]]) -> None:
        """Tell this process's readers, then the others. The commit is done and answered already."""
        self.live.hear(hints)
        if self._codec is not None and self.bus is not None and not self.bus.alone:
            channels = [hint for hint, _ in hints]
            if sum(len(entry.body) for _, entries in hints for entry in entries) > MAX_COPIES_BYTES:
                channels = [_without_copies(hint) for hint in channels]
            self.bus.send(self._codec.encode(Hints(self._origin, channels, [])))

    def publish_ephemeral(self, hint: EphemeralHint) -> None:
        """Hand a message that is not stored to every process's listeners, as far as they can be reached."""
        self.live.hear_ephemeral(hint)
        if self._codec is not None and self.bus is not None:
            self.bus.send(self._codec.encode(Hints(self._origin, [], [hint])))

    def _heard(self, payload: bytes) -> None:
        assert self._codec is not None, "the bus starts after the codec is there"
        hints = self._codec.decode(payload)
        if hints is None:
            FORGED.inc()
            return
        if hints.origin == self._origin:
            return
        self.live.hear((hint, entries_of(hint)) for hint in hints.channels)
        for ephemeral in hints.ephemeral:
            self.live.hear_ephemeral(ephemeral)


def _without_copies(hint: ChannelHint) -> ChannelHint:
    last = hint.copies[-1]
    bare = [Copy(last.id, last.seq, last.type, None, None)]
    return ChannelHint(hint.namespace, hint.channel, hint.channel_id, hint.after_id, hint.after_seq, bare)


def _report(task: asyncio.Task[None]) -> None:
    """A loop that ends by an error takes the process with it: the supervisor starts a fresh one."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("a loop of the service ended", exc_info=error)
        raise SystemExit(1)
