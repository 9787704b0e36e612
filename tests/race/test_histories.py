"""Histories of one log that do not know of each other: standbys of one primary, a copy of its files."""

from __future__ import annotations

from itertools import pairwise

import asyncpg
import pytest

from subscriptions.domain.selection import select
from tests.conftest import Database
from tests.race.support import CRASH, appenders, check_log, one, reader, stored

MOVE = """
update gapless.fences set timeline = timeline + 1000
where number = (select max(number) from gapless.fences)
"""
"""To a database that was restored, the fence is one of elsewhere."""
BASE = "select base from gapless.fences order by number desc limit 1"
WIDTH = {CRASH: 2**32, MOVE: 2**40}
SPAN = 2**24
CLOSE = 1000
TEN_MINUTES = 600_000_000
ALL = select("default", patterns=(">",))
COUNTERS = ("message_id", "kept_id_seq", "dead_letters_id_seq", "scheduled_id_seq", "gap_number")


async def _fenced_from_here(owner: asyncpg.Connection, how: str) -> list[int]:
    """Where each sequence goes on in a history that begins here; then the database is as it was."""
    read = "select array[" + ", ".join(f"(select last_value from gapless.{name})" for name in COUNTERS) + "]"
    before = await owner.fetchval(read)
    transaction = owner.transaction()
    await transaction.start()
    await owner.execute(how)
    await owner.execute("select gapless.fence()")
    found: list[int] = await owner.fetchval(read)
    await transaction.rollback()
    for name, number in zip(COUNTERS, before, strict=True):
        await owner.execute(f"select setval('gapless.{name}', {number})")
    return found


@pytest.mark.parametrize("how", [CRASH, MOVE], ids=["crashed", "moved"])
@pytest.mark.parametrize("ahead", [False, True], ids=["behind_the_clock", "ahead_of_the_clock"])
async def test_histories_from_one_moment_give_out_no_id_twice(
    database: Database, owner: asyncpg.Connection, how: str, ahead: bool
) -> None:
    """Chance decides: they come this close once in 500,000 runs."""
    async with appenders(database, 1) as (appender,):
        stored((await appender.append([one("a")]))[0])
        if ahead:
            await owner.execute(f"{MOVE}; select gapless.fence()")
            stored((await appender.append([one("a")]))[0])
        fenced = [await _fenced_from_here(owner, how) for _ in range(2)]
        wide = [await _fenced_from_here(owner, how) for _ in range(6)]
        for name, first, second in zip(COUNTERS, *fenced, strict=True):
            assert abs(first - second) > CLOSE, name
        assert max(bases[0] for bases in wide) - min(bases[0] for bases in wide) < WIDTH[how] + TEN_MINUTES
        assert max(bases[0] for bases in wide) - min(bases[0] for bases in wide) > WIDTH[how] // 1000


@pytest.mark.parametrize("how", [CRASH, MOVE], ids=["crashed", "moved"])
async def test_fences_use_up_a_bounded_part_of_the_ids(owner: asyncpg.Connection, how: str) -> None:
    """One after another, each goes on at most its width above the one before, and behind what is there."""
    await owner.execute("select gapless.fence()")
    bases = []
    for _ in range(8):
        await owner.execute(f"{how}; select gapless.fence()")
        bases.append(await owner.fetchval(BASE))
    for before, after in pairwise(bases):
        assert SPAN <= after - before <= WIDTH[how] + TEN_MINUTES


async def test_there_is_room_behind_a_fence_wherever_it_stands(
    database: Database, owner: asyncpg.Connection
) -> None:
    """Its first segment may hold few ids: those behind it are there before maintenance comes."""
    async with appenders(database, 1) as (appender,):
        for _ in range(4):
            await owner.execute(CRASH)
            stored((await appender.append([one("a")]))[0])
            for _ in range(2):
                await owner.execute(
                    "select setval('gapless.message_id', g.upper - 2) from gapless.segments g"
                    " where g.lower <= gapless_internal.last_id() and g.upper > gapless_internal.last_id()"
                )
                for answer in await appender.append([one("a"), one("a"), one("b")]):
                    stored(answer)
        await owner.execute("select gapless.roll_segment(0)")
        stored((await appender.append([one("a")]))[0])
    await check_log(owner)


async def test_a_cursor_that_another_history_gave_out_is_never_believed(
    database: Database, owner: asyncpg.Connection
) -> None:
    """It is ahead of the log; what came since the fence follows. Later the log has gone on beyond it."""
    async with appenders(database, 1) as (appender,), reader(database) as read:
        seen = stored((await appender.append([one("a")]))[0]).positions[0].id
        await owner.execute(MOVE)
        mine = stored((await appender.append([one("a")]))[0]).positions[0].id
        await read.tick()
        ahead = mine + 2**31
        for selection in (ALL, select("default", ("a",))):
            lost = await read.lost(selection, ahead)
            assert lost is not None
            assert (lost.first_id, lost.last_id, lost.stands) == (seen + 1, ahead, mine - 1)
        assert await read.lost(ALL, mine + 2**41) is None, "no history came this far"
        await owner.execute(CRASH)
        stored((await appender.append([one("a")]))[0])
        lost = await read.lost(ALL, await owner.fetchval(BASE) - 1)
        assert lost is not None
        assert (lost.first_id, lost.stands) == (seen + 1, mine - 1)


BEGIN_AT = """
create or replace function gapless_internal.unlike(p_given bigint, p_width bigint) returns bigint
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select greatest(p_given, (extract(epoch from clock_timestamp()) * 1000000)::bigint) + {}
$$
"""
"""Puts a number of its own in the place of chance."""


@pytest.mark.parametrize("fenced", [True, False], ids=["a_fence_since", "no_fence_since"])
async def test_a_sibling_far_ahead_of_the_clock_is_told_and_given_all_since(
    database: Database, owner: asyncpg.Connection, fenced: bool
) -> None:
    """Both have the fence of an earlier change. It lies days ahead of the clock, and ids go on from there."""
    async with appenders(database, 1) as (appender,), reader(database) as read:
        stored((await appender.append([one("a")]))[0])
        await owner.execute(BEGIN_AT.format("p_width - 1") + f"; {MOVE}; select gapless.fence()")
        seen = stored((await appender.append([one("a")]))[0]).positions[0].id
        base = await owner.fetchval(BASE)
        if fenced:
            await owner.execute(BEGIN_AT.format("1") + f"; {MOVE}; select gapless.fence()")
        mine = stored((await appender.append([one("a")]))[0]).positions[0].id
        read.follow(await read.tick())
        lost = await read.lost(ALL, mine + 3 * 2**38)
        assert lost is not None
        assert (lost.first_id, lost.stands) == ((seen + 1, mine - 1) if fenced else (base, base - 1))


async def test_a_cursor_that_no_history_can_have_reached_is_not_explained(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with appenders(database, 1) as (appender,), reader(database) as read:
        last_id = stored((await appender.append([one("a")]))[0]).positions[0].id
        await read.tick()
        assert await read.lost(ALL, last_id + 1) is None
        assert await read.lost(ALL, 2**53 - 1) is None
        now = await owner.fetchval("select (extract(epoch from now()) * 1000000)::bigint")
        lost = await read.lost(ALL, now)
        assert lost is not None, "a standby of this one was promoted, and this one went on"
        assert lost.stands < last_id


async def test_many_histories_at_once_are_all_unlike(owner: asyncpg.Connection) -> None:
    await owner.execute("select gapless.fence()")
    bases = sorted([(await _fenced_from_here(owner, MOVE))[0] for _ in range(12)])
    assert all(after - before > CLOSE for before, after in pairwise(bases))
    assert len({base % SPAN for base in bases}) > 1, "the grid of the segments does not decide"


async def test_what_a_copy_wrote_before_it_was_disowned_reaches_readers_of_its_sibling(
    database: Database, owner: asyncpg.Connection
) -> None:
    """A copy of the files looked like a crash until a worker came that had seen more of the log."""
    async with appenders(database, 1) as (appender,), reader(database) as read:
        seen = stored((await appender.append([one("a")]))[0]).positions[0].id
        epoch = (await read.tick()).fence.epoch
        await owner.execute(CRASH)
        mine = stored((await appender.append([one("a")]))[0]).positions[0].id
        await owner.execute("select gapless.fence($1::uuid, 0)", epoch)
        stored((await appender.append([one("a")]))[0])
        await read.tick()
        inside = await owner.fetchval(BASE) - 1
        for cursor in (inside, inside + 2**30):
            lost = await read.lost(ALL, cursor)
            assert lost is not None
            assert (lost.first_id, lost.stands) == (seen + 1, mine - 1)
        of_its_own = await read.lost(ALL, mine)
        assert of_its_own is not None
        assert of_its_own.stands == mine, "its own readers go on where they are"
