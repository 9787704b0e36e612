"""Fences that many put up at once, and what they say of an earlier moment that looks like a crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import astuple
from operator import itemgetter

import asyncpg
import pytest

from subscriptions.domain.errors import GaplessError
from subscriptions.domain.selection import Selection, select
from subscriptions.domain.watermark import Watermark
from tests.conftest import Database
from tests.race.support import CRASH, appenders, check_log, one, reader, sessions, stored

LOSE_TWO = """
with gone as (
    delete from gapless.messages where id in (select id from gapless.messages order by id desc limit 2)
)
update gapless.channels c set last_seq = last_seq - 2, last_id = (
    select m.id from gapless.messages m order by m.id desc offset 2 limit 1)
"""
ALL = select("default", patterns=(">",))
ONE = select("default", ("a",))


async def test_whoever_finds_a_crash_first_puts_up_the_only_fence(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with appenders(database, 4) as appending, reader(database) as read:
        before = await read.tick()
        for times in (1, 2, 3):
            await owner.execute(CRASH)
            await asyncio.gather(*(appender.append([one("a")]) for appender in appending), read.tick())
            after = await read.tick()
            assert after.fence[:2] == (before.fence.number + times, before.fence.epoch)
    await check_log(owner)


async def test_an_earlier_moment_is_noticed_though_others_went_on_and_it_crashed_again(
    database: Database, owner: asyncpg.Connection
) -> None:
    """A copy of the server's files was put in its place. Whoever has seen more finds that out later."""
    watermark = Watermark()
    async with appenders(database, 1) as (appender,), reader(database) as read:
        answers = await appender.append([one("a") for _ in range(5)])
        seen = [stored(answer).positions[0].id for answer in answers]
        tick = await read.tick()
        read.follow(tick)
        watermark.observe(tick)
        watermark.saw(seen[-1])
        known = (await read.tick()).fence.number
        await owner.execute(LOSE_TWO)
        for _ in range(2):
            await owner.execute(CRASH)
            stored((await appender.append([one("a")]))[0])
            # They go on for long: what was stamped lately tells nothing of what was lost.
            await owner.execute("update gapless.messages set created_at = created_at - interval '1 minute'")
        stored((await appender.append([one("a")]))[0])
        tick = await read.tick()
        assert watermark.was_taken_back(tick)
        await read.disown(tick.fence.epoch, known)
        fenced = await read.tick()
        read.follow(fenced)
        assert (fenced.fence.epoch != tick.fence.epoch, fenced.fence.number) == (True, known + 3)
        lost = await read.lost(ALL, seen[-1])
        assert lost is not None
        assert (lost.first_id, lost.last_id) == (seen[3], seen[4])
        assert await read.lost(ALL, seen[2]) is None


async def test_a_crash_alone_takes_nothing_back(database: Database, owner: asyncpg.Connection) -> None:
    watermark = Watermark()
    async with appenders(database, 1) as (appender,), reader(database) as read:
        tick = await read.tick()
        read.follow(tick)
        watermark.observe(tick)
        watermark.saw(stored((await appender.append([one("a")]))[0]).positions[0].id)
        await owner.execute(CRASH)
        stored((await appender.append([one("a")]))[0])
        assert not watermark.was_taken_back(await read.tick())


@pytest.mark.parametrize("crashes", [0, 1, 2], ids=["more", "as many", "fewer"])
async def test_a_database_with_other_fences_is_followed_however_many(
    database: Database, crashes: int
) -> None:
    """A copy of an earlier moment takes its place. Old connections lead to the one that was replaced."""
    async with (
        _copied(database) as copied,
        sessions(database.owner_url, 1) as (owner,),
        appenders(database, 1) as (appender,),
        reader(database) as read,
        reader(copied) as there,
    ):
        begun = await read.tick()
        for _ in range(crashes):
            await owner.execute(CRASH)
            await appender.append([one("a")])
        before = await read.tick()
        assert before.fence.number == begun.fence.number + crashes
        read.follow(before)
        assert len((await read.page(ONE, 0, None, 10)).messages) == crashes
        read._ticks = there._ticks
        tick = await read.tick()
        assert tick.fence.epoch != before.fence.epoch
        assert (tick.fence.number, tick.shared) == (begun.fence.number + 1, begun.fence.number)
        read.follow(tick)
        with pytest.raises(GaplessError, match="history may have changed"):
            await read.page(ONE, 0, None, 10)
        read._pages = there._pages
        assert not (await read.page(ONE, 0, None, 10)).messages


async def _append(database: Database, count: int) -> list[int]:
    """Publish so many messages; returns their ids."""
    async with appenders(database, 1) as (appender,):
        answers = await appender.append([one("a") for _ in range(count)])
        return [stored(answer).positions[0].id for answer in answers]


@pytest.mark.parametrize("selection", [ALL, ONE], ids=["pattern", "channel"])
@pytest.mark.parametrize(("first", "second"), [(5, 8), (8, 5), (5, 5)])
async def test_a_reader_of_a_copy_gets_what_only_the_next_copy_kept(
    database: Database, selection: Selection, first: int, second: int
) -> None:
    """Two standbys of one primary lead one after the other. They had received more or less of it."""
    ids: list[int] = []
    async with AsyncExitStack() as stack:
        copies: dict[str, Database] = {}
        for name, kept in sorted([("first", first), ("second", second)], key=itemgetter(1)):
            ids += await _append(database, kept - len(ids)) if kept > len(ids) else []
            copies[name] = await stack.enter_async_context(_copied(database, name))
        seen = await _append(copies["first"], 3)
        later = await _append(copies["second"], 3)
        read, there = [await stack.enter_async_context(reader(copies[n])) for n in ("first", "second")]
        read.follow(await read.tick())
        read._ticks, read._pages = there._ticks, there._pages
        read.follow(await read.tick())
        for cursor in (seen[0], seen[2], seen[2] + 1000):
            lost = await read.lost(selection, cursor)
            assert lost is not None
            page = await read.page(selection, lost.stands, later[-1], 100)
            assert [m.id for m in page.messages] == ids[first:second] + later
            assert lost.first_id <= seen[0]
            assert lost.first_id > ids[min(first, second) - 1], "what both have is not told as lost"


async def test_a_tick_fails_once_where_others_publish_to_another_database(database: Database) -> None:
    """It may have come on an old connection, to a primary that was replaced and that nobody stopped."""
    async with _copied(database) as copied, appenders(copied, 1) as (appender,), reader(database) as read:
        read.follow(await read.tick())
        await appender.append([one("a")])
        elsewhere = stored((await appender.append([one("a")]))[0]).fence
        assert elsewhere is not None
        read.doubt(elsewhere)
        with pytest.raises(GaplessError, match="different databases"):
            await read.tick()
        read.doubt(elsewhere)
        await read.tick()


@asynccontextmanager
async def _copied(database: Database, name: str = "copy") -> AsyncIterator[Database]:
    """A copy, to which nobody is connected yet."""
    copy = f"{database.name}_{name}"
    admin = await asyncpg.connect(database.admin_url.replace(f"/{database.name}?", "/postgres?"))
    try:
        await admin.execute(f"create database {copy} template {database.name} owner gapless_owner")
        yield Database(copy, *(url.replace(database.name, copy) for url in astuple(database)[1:]))
    finally:
        await admin.execute(f"drop database if exists {copy} with (force)")
        await admin.close()


async def test_a_publish_names_the_fence_that_it_stands_behind_though_its_number_was_there_before(
    database: Database, owner: asyncpg.Connection
) -> None:
    """A dump that lacks the newest fence was restored while this connection lived."""
    async with appenders(database, 1) as (appender,):
        stored((await appender.append([one("a")]))[0])
        await owner.execute(CRASH)
        for _ in range(2):
            before = stored((await appender.append([one("a")]))[0]).fence
        await owner.execute(
            "delete from gapless.fences where number = 1; update gapless.fences set kind = kind"
        )
        stored((await appender.append([one("a")]))[0])
        after = stored((await appender.append([one("a")]))[0]).fence
        assert before is not None
        assert after is not None
        assert (after.number, after.epoch != before.epoch) == (before.number, True)
        assert after.base == await owner.fetchval("select base from gapless.fences where number = 1")
