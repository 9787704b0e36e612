"""Retention while others publish and read: segments roll, fall, and nobody misses anything unannounced."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import asyncpg
import pytest

from db.appender import Appender
from db.reader import Reader
from subscriptions.domain.selection import Selection, select
from subscriptions.domain.watermark import Watermark
from subscriptions.engine.live import engine as live
from subscriptions.engine.live.engine import LiveEngine
from subscriptions.engine.live.live_subscription import Chunk, Gap
from subscriptions.engine.live.starts import After
from tests.conftest import Database
from tests.patience import PATIENCE_S, eventually
from tests.race.support import (
    IMMEDIATE,
    appenders,
    blocked,
    check_log,
    one,
    publish,
    reader,
    rows,
    sessions,
    stored,
)
from tests.sim.world import Wire, encode, read_frames

CHANNELS = ("c.0", "c.1", "c.2")
ROUNDS = 60


class House:
    """Everything the maintenance loop does, all the time. A pass that gets a lock not soon ends half way.
    `passes` counts those that came through, `dropped` the segments that fell."""

    def __init__(self, owner: asyncpg.Connection, read: Reader) -> None:
        self._owner = owner
        self._read = read
        self.passes = 0
        self.dropped = 0

    async def keep(self, publishing: asyncio.Future[list[None]]) -> None:
        watermark = Watermark()
        while not publishing.done():
            settled = watermark.observe(await self._read.tick())
            with suppress(asyncpg.LockNotAvailableError):
                await self._owner.execute("select gapless.roll_segment(0)")
                await self._owner.execute("select gapless.trim_channels(100)")
                fallen = await self._owner.fetchval("select gapless.drop_segment($1)", settled)
                self.dropped += fallen is not None
                await self._owner.execute("select gapless.purge_rows(50)")
                self.passes += 1

    async def another_pass(self) -> None:
        """Wait until it has begun and come through once more."""
        enough = self.passes + 2
        await eventually(lambda: self.passes >= enough)


async def _publish(appender: Appender, house: House) -> None:
    """So many that a segment is full of what must go between two looks of the house."""
    for number in range(ROUNDS):
        if number % (ROUNDS // 5) == 0:
            await house.another_pass()
        for answer in await appender.append([one(channel, str(number)) for channel in CHANNELS] * 3):
            stored(answer)


async def _follow(engine: LiveEngine, selection: Selection, wanted: dict[str, int]) -> None:
    """From the very beginning to these seqs: every step is the next message, or a gap that says so."""
    at = dict.fromkeys(wanted, 0)
    subscription = await engine.subscribe(selection, After(0), Wire(), 15)
    while at != wanted:
        event = await subscription.next(engine.read)
        if isinstance(event, Gap):
            assert event.first_seq > at[event.channel]
            at[event.channel] = event.first_seq - 1
        elif isinstance(event, Chunk):
            for _, channel, seq in read_frames(event.data):
                assert seq == at[channel] + 1, f"{channel} went from {at[channel]} to {seq} in silence"
                at[channel] = seq
    engine.unsubscribe(subscription)


@pytest.mark.usefixtures("as_it_is")
async def test_retention_never_removes_in_silence(
    database: Database, owner: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "START_TIMEOUT_S", PATIENCE_S)
    for channel in CHANNELS:
        await owner.execute("""select gapless.set_channel(1, $1, '{"max_messages": 20}', false)""", channel)
    async with appenders(database, 2) as publishers, reader(database) as read:
        engine = LiveEngine(read, encode, clock=time.monotonic)
        running = asyncio.create_task(engine.run())
        last = dict.fromkeys(CHANNELS, 2 * 3 * ROUNDS)
        readers = [
            asyncio.create_task(_follow(engine, selection, wanted))
            for selection, wanted in (
                (select("default", patterns=("c.*",)), last),
                (select("default", CHANNELS[:2]), {c: last[c] for c in CHANNELS[:2]}),
                (select("default", CHANNELS[:1]), {CHANNELS[0]: last[CHANNELS[0]]}),
            )
        ]
        house = House(owner, read)
        publishing = asyncio.gather(*(_publish(publisher, house) for publisher in publishers))
        await house.keep(publishing)
        await publishing
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*readers)
        running.cancel()
    assert house.dropped > 0, "segments fell while they were read"
    await check_log(owner)


async def test_a_segment_is_not_dropped_under_a_running_publisher(
    database: Database, owner: asyncpg.Connection
) -> None:
    """Its ids may lie in the segment: nothing in it is settled before that publisher is gone."""
    async with sessions(database.owner_url, 1) as (session,), reader(database) as read:
        watermark = Watermark()
        transaction = session.transaction()
        await transaction.start()
        await publish(session, "a")
        await session.execute(IMMEDIATE)
        # As if the log had moved on to the next segment meanwhile.
        await owner.execute(
            "select setval('gapless.message_id', upper) from gapless.segments where lower = 1"
        )
        settled = watermark.observe(await read.tick())
        assert settled == 0
        assert await owner.fetchval("select gapless.drop_segment($1)", settled) is None
        await transaction.commit()
    assert len(await rows(owner)) == 1


@pytest.mark.usefixtures("as_it_is")
async def test_rolling_waits_for_publishers_and_moves_the_next_one(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with sessions(database.owner_url, 1) as (session,), appenders(database, 1) as (appender,):
        stored((await appender.append([one("a")]))[0])
        transaction = session.transaction()
        await transaction.start()
        await publish(session, "b")
        await session.execute(IMMEDIATE)
        with pytest.raises(asyncpg.LockNotAvailableError):
            await owner.execute("select gapless.roll_segment(0)")
        await transaction.commit()
        assert await owner.fetchval("select gapless.roll_segment(0)")
        upper = await owner.fetchval("select upper from gapless.segments where lower = 1")
        assert stored((await appender.append([one("a")]))[0]).positions[0].id == upper
    await check_log(owner)


async def test_a_trimmed_channel_goes_on_where_it_was(database: Database, owner: asyncpg.Connection) -> None:
    """Emptied by retention, its segment dropped, a channel still counts on."""
    async with appenders(database, 1) as (appender,):
        await appender.append([one("a"), one("a"), one("a")])
        await owner.execute("""select gapless.set_channel(1, 'a', '{"max_age": 1}', false)""")
        await owner.execute("update gapless.messages set created_at = created_at - interval '1 hour'")
        assert await owner.fetchval("select gapless.trim_channels(10)") == 1
        assert await owner.fetchval("select gapless.roll_segment(0)")
        last_id = await owner.fetchval("select gapless_internal.last_id()")
        assert await owner.fetchval("select gapless.drop_segment($1)", last_id) == 1
        assert not await rows(owner)
        (answer,) = await appender.append([one("a")])
        assert stored(answer).positions[0].seq == 4
        assert stored(answer).positions[0].id > last_id
    assert await owner.fetchval("select gapless.seq_at(id, $1) from gapless.channels", last_id) == 3
    await check_log(owner)


@pytest.mark.parametrize(
    "count",
    [
        "select gapless.seq_at(1, 3)",
        "select gapless_internal.lost(0, array[1::bigint], array[9::bigint], 0, 3)",
    ],
    ids=["a place", "what is lost"],
)
async def test_what_counts_places_sees_a_segment_or_what_it_left_behind(
    database: Database, owner: asyncpg.Connection, count: str
) -> None:
    """It began before the segment fell, and finds it gone."""
    async with appenders(database, 1) as (appender,):
        await appender.append([one("a"), one("a"), one("a")])
    await owner.execute("""select gapless.set_channel(1, 'a', '{"max_age": 1}', false)""")
    await owner.execute("update gapless.messages set created_at = created_at - interval '1 hour'")
    await owner.execute("select gapless.trim_channels(10)")
    await owner.execute("select gapless.roll_segment(0)")
    async with sessions(database.owner_url, 2) as (dropping, counting):
        transaction = dropping.transaction()
        await transaction.start()
        assert await dropping.fetchval("select gapless.drop_segment(gapless_internal.last_id())") == 1
        counted = await blocked(owner, counting.fetchval(count))
        await transaction.commit()
        assert await counted == 3
