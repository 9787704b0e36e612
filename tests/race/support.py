"""Sessions that are stepped by hand, and what is true of the log whatever they did."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from db import appender as appender_module
from db import connect as connect_module
from db import liveness as liveness_module
from db import transactions as transactions_module
from db.appender import Appender
from db.connect import DatabaseConfig, Pool
from db.reader import Reader
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.model import Append, Appended, NewMessage
from tests.conftest import Database
from tests.patience import PATIENCE_S, eventually

IMMEDIATE = "select gapless_internal.append_outbox()"
"""What only the owner can do: a publisher that has its ids and its locks, and has not committed yet."""

WITHOUT_LIMITS = f"""
do $$
declare
    f record;
begin
    for f in select p.oid::regprocedure as called from pg_catalog.pg_proc p
             where exists (select from unnest(p.proconfig) c where c like 'lock_timeout=%') loop
        execute format('alter function %s set lock_timeout = 0', f.called);
    end loop;
    execute replace(pg_get_functiondef('gapless_internal.limit_waits()'::regprocedure),
                    quote_literal('5s'), quote_literal('{PATIENCE_S:.0f}s'));
end $$"""


async def wait_for_locks(owner: asyncpg.Connection) -> None:
    """Nobody gives up a lock, or is ended, because something else takes its time."""
    await owner.execute(WITHOUT_LIMITS)


def wait_for_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapters do not give it up because it answers late."""
    monkeypatch.setattr(connect_module, "CONNECT_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(liveness_module, "STEP_TIMEOUT_S", PATIENCE_S)
    for module in (appender_module, transactions_module):
        monkeypatch.setattr(module, "PUBLISH_TIMEOUT_S", PATIENCE_S)


def one(channel: str, data: str = "{}", *, key: str | None = None, body: bytes = b"body") -> Append:
    """A request with one message."""
    return Append("default", (NewMessage(channel, data.encode()),), key, body if key else b"")


def stored(answer: Appended | GaplessError) -> Appended:
    """The answer, which must be that of a request that was stored."""
    assert isinstance(answer, Appended), answer
    return answer


@asynccontextmanager
async def appenders(database: Database, count: int) -> AsyncIterator[list[Appender]]:
    """Connections that append as the service does."""
    made = [Appender(DatabaseConfig(database.service_url)) for _ in range(count)]
    try:
        yield made
    finally:
        for appender in made:
            appender.terminate()


CRASH = """
delete from gapless.lives;
create or replace function gapless_internal.recovered() returns bigint language sql volatile as
    $$ select pg_current_wal_flush_lsn() - '0/0'::pg_lsn $$
"""
"""All that a crash leaves behind: an unlogged table is empty, and the recovery went as far as the WAL did."""


@asynccontextmanager
async def reader(database: Database) -> AsyncIterator[Reader]:
    """What live readers read with."""
    config = DatabaseConfig(database.service_url)
    pools = [Pool(config, application="test", size=size) for size in (4, 2, 1)]
    try:
        yield Reader(*pools)
    finally:
        for pool in pools:
            await pool.close()


@asynccontextmanager
async def sessions(url: str, count: int) -> AsyncIterator[list[asyncpg.Connection]]:
    """Plain connections."""
    made: list[asyncpg.Connection] = [await asyncpg.connect(url) for _ in range(count)]
    try:
        yield made
    finally:
        for session in made:
            session.terminate()


async def publish(session: asyncpg.Connection, channel: str, data: str = "{}") -> None:
    """One message by SQL, in whatever transaction the session is."""
    await session.execute("select gapless.publish($1, $2::jsonb)", channel, data)


async def waiting(watcher: asyncpg.Connection) -> int:
    """How many sessions of this database wait for a lock."""
    number: int = await watcher.fetchval(
        "select count(distinct l.pid) from pg_locks l join pg_stat_activity a using (pid)"
        " where not l.granted and a.datname = current_database()"
    )
    return number


async def until_waiting(watcher: asyncpg.Connection, count: int = 1) -> None:
    """Wait until that many sessions of this database wait for a lock."""

    async def so_many() -> bool:
        return await waiting(watcher) >= count

    await eventually(so_many)


async def blocked(watcher: asyncpg.Connection, work: Any) -> asyncio.Task[Any]:
    """Begin something that must wait for another session, and come back when it does."""
    task: asyncio.Task[Any] = asyncio.ensure_future(work)
    await until_waiting(watcher)
    assert not task.done()
    return task


async def rows(owner: asyncpg.Connection, channel: str | None = None) -> Sequence[Any]:
    """(channel, id, seq, data) of everything stored, in id order."""
    found: list[Any] = await owner.fetch(
        "select c.name as channel, m.id, m.seq, m.data::text as data from gapless.messages m"
        " join gapless.channels c on c.id = m.channel_id where $1::text is null or c.name = $1 order by m.id",
        channel,
    )
    return found


async def check_log(owner: asyncpg.Connection) -> None:
    """What holds of every log: seq is dense and rises with id, and every channel knows its own head."""
    broken = await owner.fetch(
        "select c.name, c.last_seq, count(m.id), max(m.seq), max(m.id), c.last_id from gapless.channels c"
        " left join gapless.messages m on m.channel_id = c.id and m.seq >= c.first_seq"
        " group by c.id having count(m.id) <> c.last_seq - c.first_seq + 1"
        " or coalesce(max(m.seq), c.last_seq) <> c.last_seq or coalesce(max(m.id), c.last_id) <> c.last_id"
    )
    assert not broken, broken
    crossed = await owner.fetch(
        "select * from (select m.channel_id, m.id, m.seq,"
        " lag(m.seq) over (partition by m.channel_id order by m.id) as before"
        " from gapless.messages m join gapless.channels c on c.id = m.channel_id) x where seq <> before + 1"
    )
    assert not crossed, crossed


async def opened_segments(session: asyncpg.Connection) -> set[str]:
    """The segments whose indexes statements of this transaction have opened to read."""
    query = """
    select distinct i.indrelid::regclass::text as segment
    from pg_locks l join pg_index i on i.indexrelid = l.relation
    join pg_inherits s on s.inhrelid = i.indrelid and s.inhparent = 'gapless.messages'::regclass
    where l.pid = pg_backend_pid()
    """
    return {row["segment"] for row in await session.fetch(query)}
