"""Two copies of one log at once: a staging copy, or an old primary that nobody stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

import asyncpg
import pytest

from load.failover.cluster import Cluster
from subscriptions.domain.watermark import Tick, Watermark
from tests.conftest import Database, Serve
from tests.patience import PATIENCE_S, eventually
from tests.race.support import appenders, one, reader
from tests.sse import publish, subscribe


async def test_copies_of_a_database_on_one_redis_stay_apart(serve: Serve, database: Database) -> None:
    """Each reader gets what its own database holds, at once, and nothing of the other, whatever is hinted."""
    copy = f"{database.name}_copy"
    first = serve()
    await publish(first.url, "a", "both")
    first.kill()
    admin = await asyncpg.connect(database.admin_url.replace(f"/{database.name}?", "/postgres?"))
    try:
        await admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1", database.name
        )
        await admin.execute(f"create database {copy} template {database.name} owner gapless_owner")
        urls = {
            "GAPLESS_DATABASE_URL": database.service_url.replace(database.name, copy),
            "GAPLESS_MIGRATE_URL": database.owner_url.replace(database.name, copy),
        }
        await _stay_apart(serve().url, serve(**urls).url)
        assert await identity(database.owner_url) != await identity(urls["GAPLESS_MIGRATE_URL"])
    finally:
        await admin.execute(f"drop database if exists {copy} with (force)")
        await admin.close()


@pytest.fixture
async def primary() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    try:
        await cluster.start(fenced=True)
        yield cluster
    finally:
        cluster.remove()


@pytest.mark.parametrize(
    "promoted",
    [
        pytest.param(True, id="promoted_standby", marks=pytest.mark.drill),
        pytest.param(False, id="copied_files", marks=pytest.mark.drill),
    ],
)
async def test_a_primary_that_nobody_stopped_stays_apart_from_what_took_its_place(
    serve: Serve, primary: Cluster, promoted: bool
) -> None:
    """The old one keeps its server and its Redis, and goes on to be written to."""
    first = serve(**_urls(primary.primary.url))
    await publish(first.url, "a", "both")
    if promoted:
        await asyncio.to_thread(primary.follow)
        await primary.cut()
        await primary.standby.execute(f"select pg_promote(true, {int(PATIENCE_S)})", "postgres")
    else:
        await asyncio.to_thread(primary.back_up, primary.standby.data)
        await asyncio.to_thread(primary.standby.start)
    await _stay_apart(first.url, serve(**_urls(primary.standby.url)).url)
    assert await identity(primary.primary.url) != await identity(primary.standby.url)


async def test_a_copy_is_told_from_a_crash_by_how_far_the_wal_went(primary: Cluster) -> None:
    """The copy may hold the greatest id, and lack an earlier one that was committed later."""
    watermark = Watermark()
    here = Database("gapless", primary.primary.url, primary.primary.url, primary.primary.url)
    there = Database("gapless", primary.standby.url, primary.standby.url, primary.standby.url)
    async with reader(here) as read, appenders(here, 1) as (appender,):

        async def tick() -> Tick:
            found = await read.tick()
            read.follow(found)
            return found

        watermark.observe(await tick())
        await primary.crash()
        await eventually(partial(_answers, primary))
        crashed = await read.tick()
        assert crashed.fence.number == 1
        assert not watermark.was_taken_back(crashed)
        read.follow(crashed)
        watermark.observe(crashed)
        await asyncio.to_thread(primary.back_up, primary.standby.data)
        await appender.append([one("a")])
        while watermark.observe(await tick()) < watermark.last_id:
            pass
        assert not watermark.was_taken_back(await read.tick())
        primary.primary.stop()
        await asyncio.to_thread(primary.standby.start)
        # It has written more by itself than it lacks.
        await primary.standby.execute("select pg_switch_wal(); select pg_logical_emit_message(true, '', '')")
        async with reader(there) as elsewhere:
            read._ticks = elsewhere._ticks
            copied = await read.tick()
        assert (copied.fence.number, copied.fence.epoch) == (2, crashed.fence.epoch)
        assert watermark.was_taken_back(copied)


async def _answers(primary: Cluster) -> bool:
    with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        await primary.primary.execute("select 1")
        return True
    return False


def _urls(url: str) -> dict[str, str]:
    return {"GAPLESS_DATABASE_URL": url, "GAPLESS_MIGRATE_URL": url}


async def _stay_apart(here: str, there: str) -> None:
    async with (
        subscribe(here, "a", from_="earliest") as one_here,
        subscribe(there, "a", from_="earliest") as one_there,
        subscribe(here, ">", from_="earliest") as all_here,
        subscribe(there, ">", from_="earliest") as all_there,
    ):
        for number in range(20):
            await publish(here, "a", f"here {number}")
            if number % 3 == 0:
                await publish(there, "a", f"there {number}")
        wanted = {
            "here": ["both", *(f"here {number}" for number in range(20))],
            "there": ["both", *(f"there {number}" for number in range(0, 20, 3))],
        }
        for stream, side in (
            (one_here, "here"),
            (one_there, "there"),
            (all_here, "here"),
            (all_there, "there"),
        ):
            messages = await stream.messages(len(wanted[side]))
            assert [m["data"] for m in messages] == wanted[side]
            assert [m["seq"] for m in messages] == list(range(1, len(wanted[side]) + 1))


async def identity(url: str) -> tuple[str, str]:
    """What names the topic of the hints of this history, and is part of the key that signs them."""
    session = await asyncpg.connect(url)
    try:
        row = await session.fetchrow("select epoch::text, life::text from gapless.tick(null)")
        assert row is not None
        return row["epoch"], row["life"]
    finally:
        await session.close()
