"""Where the log stands is read under the sequence's own lock: no id is seen before it is taken."""

from __future__ import annotations

import asyncio

import asyncpg

from tests.conftest import Database
from tests.race.support import sessions

TAKE = "select count(nextval('gapless.message_id')) from generate_series(1, 400000)"
WATCH = """
do $$
declare
    before bigint := 0;
    now bigint;
begin
    for i in 1 .. 40000 loop
        now := gapless.last_id();
        if now < before then
            raise exception 'the last id went back from % to %', before, now;
        end if;
        before := now;
    end loop;
end $$
"""


async def test_the_last_id_never_goes_back_while_ids_are_taken(database: Database) -> None:
    """A plain read of the sequence fails this within a second: it sees the value that is logged ahead."""
    async with sessions(database.owner_url, 2) as (taking, watching):
        taken = asyncio.create_task(taking.execute(TAKE))
        await watching.execute(WATCH)
        await taken


async def test_nobody_reads_the_sequence_by_itself(owner: asyncpg.Connection) -> None:
    rows = await owner.fetch(
        "select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname = 'gapless' and p.prosrc ~ 'last_value' and p.proname <> 'last_id'"
        " and p.prosrc !~ 'pg_sequence_last_value'"
    )
    assert rows == []
