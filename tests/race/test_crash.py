"""What a crash of the database takes back, and what the watermark makes of it. Has a server of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import pytest

from app.embedded import EmbeddedPostgres
from db.migrate import migrate
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.watermark import Fence, Tick, Watermark
from tests.conftest import Database
from tests.patience import eventually
from tests.race.support import IMMEDIATE, publish, reader, sessions

PAGE = 8192
HEADER = 24


@pytest.fixture
async def crashing(tmp_path: Path) -> AsyncIterator[Database]:
    """A database whose journal is written by nobody but those who commit."""
    server = EmbeddedPostgres(tmp_path / "postgres")
    server.start()
    admin = await asyncpg.connect(server.admin_url)
    await admin.execute("alter system set wal_writer_delay = '10s'")
    await admin.execute("alter system set autovacuum = off")
    await admin.execute("select pg_reload_conf()")
    await admin.close()
    await migrate(server.owner_url)
    yield Database("own", server.owner_url, server.service_url, server.admin_url)
    server.stop()


@asynccontextmanager
async def _still(database: Database) -> AsyncIterator[int]:
    """The server's own processes that write to the journal, or write it to disk, stand still, however long
    this takes. Gives the process of the journal's writer."""
    kinds = ["walwriter", "background writer", "checkpointer"]
    async with sessions(database.admin_url, 1) as (session,):
        found = await session.fetch(
            "select backend_type, pid from pg_stat_activity where backend_type = any ($1)", kinds
        )
    pids: dict[str, int] = {row["backend_type"]: row["pid"] for row in found}
    assert sorted(pids) == sorted(kinds)
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)
    try:
        yield pids["walwriter"]
    finally:
        for pid in pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


async def test_ids_that_a_crash_takes_back_are_never_given_again(crashing: Database) -> None:
    watermark = Watermark()
    async with _still(crashing) as writer:
        async with sessions(crashing.owner_url, 1) as (session,), reader(crashing) as read:
            await publish(session, "a")
            await read.tick()
            # From here on nothing is flushed but by a commit: and this one takes its hundred ids back.
            transaction = session.transaction()
            await transaction.start()
            await session.execute("select gapless.publish('a', '1') from generate_series(1, 100)")
            await session.execute(IMMEDIATE)
            await transaction.rollback()
            before = await _tick_that_commits_nothing(session)
            assert (before.last_id, before.holders) == (101, frozenset())
            assert watermark.observe(before) < 101, "not on disk, not settled"
        # One of the server's own processes dies: the server goes through recovery.
        os.kill(writer, signal.SIGKILL)
    async with reader(crashing) as read:

        async def recovered() -> bool:
            try:
                return (await read.tick()).life != before.life
            except GaplessError:
                return False

        await eventually(recovered)
        after = await read.tick()
        assert after.last_id > before.last_id, "ids go on beyond all that may have been seen"
        assert after.fence[:2] == (before.fence.number + 1, before.fence.epoch), "nothing committed was lost"
        watermark.observe(after)
        settled = watermark.observe(await read.tick())
        assert settled == after.last_id


async def _tick_that_commits_nothing(session: asyncpg.Connection) -> Tick:
    transaction = session.transaction()
    await transaction.start()
    (row,) = await session.fetch("select * from gapless.tick()")
    await transaction.rollback()
    holders, fence = frozenset(row["holders"]), Fence(row["fences"], str(row["epoch"]), 0)
    return Tick(row["last_id"], row["lsn"], row["flushed"], holders, str(row["life"]), fence)


async def test_the_watermark_settles_though_nobody_commits(crashing: Database) -> None:
    """Reading leaves something in the journal too, which nobody is in a hurry to write."""
    watermark = Watermark()
    async with (
        _still(crashing),
        sessions(crashing.admin_url, 1) as (session,),
        reader(crashing) as read,
    ):
        await publish(session, "a")
        await read.tick()
        await session.execute("select pg_logical_emit_message(false, 'something', 'else')")
        assert await session.fetchval("select pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()")
        first = await read.tick()
        assert watermark.observe(first) < first.last_id
        assert watermark.observe(await read.tick()) == first.last_id


async def test_the_watermark_settles_at_the_end_of_a_page(crashing: Database) -> None:
    """There the journal's position is beyond what can be on disk, until somebody writes again."""
    watermark = Watermark()
    async with (
        _still(crashing),
        sessions(crashing.admin_url, 1) as (session,),
        reader(crashing) as read,
    ):
        await publish(session, "a")
        await read.tick()
        assert await _fill_the_page(session), "nobody else writes"
        beyond = "select pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()"
        assert await session.fetchval(beyond), "all is flushed, and the position lies beyond it"
        tick = await read.tick()
        assert watermark.observe(tick) == tick.last_id


async def _fill_the_page(session: asyncpg.Connection) -> bool:
    """Write until the journal ends exactly with a page, on disk: its position then counts a header more."""
    step = 0
    for _ in range(200):
        before = await _position(session)
        room = PAGE - before % PAGE
        size = 8 + room - step if step and room >= step else 8
        await session.execute("select pg_logical_emit_message(true, 'x', repeat('a', $1))", size)
        after = await _position(session)
        if after % PAGE == HEADER and after // PAGE > before // PAGE:
            return True
        if size == 8 and after // PAGE == before // PAGE:
            step = after - before
    return False


async def _position(session: asyncpg.Connection) -> int:
    return int(await session.fetchval("select (pg_current_wal_insert_lsn() - '0/0')::bigint"))
