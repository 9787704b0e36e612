"""Where the log stands is read under the sequence's own lock: no id is seen before it is taken."""

from __future__ import annotations

import asyncio

from tests.conftest import Database
from tests.race.support import sessions
from tests.support import ROOT

TAKE = "select count(nextval('gapless.message_id')) from generate_series(1, 400000)"
WATCH = """
do $$
declare
    before bigint := 0;
    now bigint;
begin
    for i in 1 .. 40000 loop
        now := gapless_internal.last_id();
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


def test_nobody_reads_a_sequence_by_itself() -> None:
    """Neither a function nor a program: its page is ahead of what was taken."""
    folders = [ROOT / name for name in ("app", "cache", "db", "pipeline", "subscriptions")]
    files = [file for folder in folders for ending in ("py", "sql") for file in folder.rglob(f"*.{ending}")]
    lines = [line.split("--")[0] for file in files for line in file.read_text().splitlines()]
    assert any("pg_sequence_last_value" in line for line in lines), "the one that may"
    assert [line for line in lines if "last_value" in line.replace("pg_sequence_last_value", "")] == []
