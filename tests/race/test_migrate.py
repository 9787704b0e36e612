"""Many processes start at once, or die half way: the schema is there once and whole."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from app.embedded import EmbeddedPostgres
from db import migrate as migrating
from db.migrate import MigrationError, _alone, function_files, migrate, migrations
from subscriptions.domain.delivery import Subscription
from tests.conftest import Database, drop_database
from tests.patience import eventually, in_time
from tests.race.queues import ALL, Queues, open_queues
from tests.race.support import blocked, check_log, publish, sessions, until_waiting
from tests.support import ROOT

PROBE = "create or replace function gapless.probe() returns integer language sql as 'select 7';\n"
PROGRAM = "import asyncio, sys; from db.migrate import migrate; print(asyncio.run(migrate(sys.argv[1])))"


@pytest.fixture
async def empty(postgres: EmbeddedPostgres) -> AsyncIterator[Database]:
    """A database without a schema."""
    name = "gapless_empty"
    admin = await asyncpg.connect(postgres.admin_url)
    await admin.execute(f"create database {name} owner gapless_owner")
    await admin.close()
    urls = [postgres.owner_url, postgres.service_url, postgres.admin_url]
    made = Database(name, *(re.sub(r"/[a-z_]+[?]", f"/{name}?", url) for url in urls))
    yield made
    await drop_database(postgres, made)


async def test_four_processes_migrate_once(empty: Database) -> None:
    command = [sys.executable, "-c", PROGRAM, empty.owner_url]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    said = [(await asyncio.to_thread(process.communicate))[0].strip() for process in running]
    assert [process.returncode for process in running] == [0] * 4
    steps = [f"{step.version:04} {step.name}" for step in migrations()]
    whole = str(steps + [f"functions/{name}" for name in function_files() if name != "roles"])
    assert sorted(said) == sorted([whole, "[]", "[]", "[]"])


async def test_a_schema_never_lacks_its_grants(
    empty: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that ends before the grants are given leaves the work to the next one."""
    broken = tmp_path / "roles.sql"
    broken.write_text("select 1 / 0")
    monkeypatch.setattr(migrating, "ROLES_FILE", broken)
    with pytest.raises(MigrationError):
        await migrate(empty.owner_url)
    monkeypatch.undo()
    assert await migrate(empty.owner_url)
    session = await asyncpg.connect(empty.owner_url)
    assert await session.fetchval("select has_schema_privilege('gapless_service', 'gapless', 'usage')")
    session.terminate()


BEFORE_CHANGES = """
alter table gapless.messages drop column change;
alter table gapless.kept drop column change;
alter table gapless.channels drop column changes, drop column deleted_seq;
alter table gapless.subscriptions drop column changes;
alter table gapless.outbox drop column change, drop column version, drop column moderates;
alter table gapless.scheduled drop column change, drop column version, drop column moderates,
    drop column refused;
alter table gapless.spark_chunks drop column changes;
alter table gapless.spark_attempts drop column change_count;
alter table gapless.spark_batches drop column refused;
drop table gapless.changes, gapless.latest, gapless.annotations, gapless.annotation_counts,
    gapless.deleted_ranges, gapless.markers, gapless.deleted_sums;
delete from gapless.migrations where version > 17;
"""


@pytest.mark.parametrize("table", ["messages", "kept"])
async def test_who_reads_for_long_delays_a_step_and_nobody_else(
    database: Database, owner: asyncpg.Connection, table: str
) -> None:
    """Spark scans the log for minutes, and so does a backup."""
    await owner.execute(BEFORE_CHANGES)
    read = f"select from gapless.{table} limit 1"
    async with sessions(database.owner_url, 2) as (scan, other):
        await scan.execute(f"begin; {read}")
        step = asyncio.create_task(migrate(database.owner_url))
        for _ in range(3):
            await until_waiting(owner)
            for name in ("messages", "kept"):
                await in_time(other.fetch(f"select from gapless.{name} limit 1"))
        assert not step.done()
        await scan.execute("commit")
        assert "0018 changes" in await step


async def test_an_edited_step_is_refused(database: Database, owner: asyncpg.Connection) -> None:
    await owner.execute("update gapless.migrations set checksum = 'other'")
    with pytest.raises(MigrationError, match="was changed after it ran"):
        await migrate(database.owner_url)


async def test_a_newer_schema_is_refused(database: Database, owner: asyncpg.Connection) -> None:
    await owner.execute("insert into gapless.migrations values (99, 'later', '')")
    with pytest.raises(MigrationError, match="newer than this program"):
        await migrate(database.owner_url)


async def test_a_changed_function_is_applied_anew_and_alone(
    database: Database, owner: asyncpg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await migrate(database.owner_url) == []
    edited = tmp_path / "functions"
    shutil.copytree(migrating.FUNCTIONS_DIR, edited)
    with (edited / "lanes.sql").open("a") as file:
        file.write(PROBE)
    monkeypatch.setattr(migrating, "FUNCTIONS_DIR", edited)
    assert await migrate(database.owner_url) == ["functions/lanes"]
    assert await owner.fetchval("select gapless.probe()") == 7
    assert not await owner.fetchval("select has_function_privilege('public', 'gapless.probe()', 'execute')")
    assert await migrate(database.owner_url) == []


async def test_a_function_that_no_file_defines_any_more_is_dropped(
    database: Database, owner: asyncpg.Connection
) -> None:
    """By its arguments: an older form of a function that is there goes too. So it is after a start that ended
    between defining the new ones and dropping the old."""
    await owner.execute(PROBE)
    await owner.execute("create function gapless.ack(integer) returns integer language sql as 'select 1'")
    await owner.execute(
        "create function gapless_internal.promote() returns integer language sql as 'select 1'"
    )
    await owner.execute("update gapless.function_files set checksum = 'other' where name = 'lanes'")
    before = set(await there(owner, "ack", "promote", "probe"))

    killed = pytest.MonkeyPatch()
    killed.setattr(migrating, "_drop_superseded", stopped)
    with killed.context(), pytest.raises(asyncio.CancelledError):
        await migrate(database.owner_url)
    killed.undo()
    assert set(await there(owner, "ack", "promote", "probe")) == before
    assert await migrate(database.owner_url) == []
    assert before - set(await there(owner, "ack", "promote", "probe")) == {
        "gapless.probe()",
        "gapless.ack(integer)",
        "gapless_internal.promote()",
    }


async def test_a_function_that_something_of_a_users_needs_stays_until_that_is_gone(
    database: Database, owner: asyncpg.Connection
) -> None:
    await owner.execute(PROBE)
    await owner.execute("create view public.mine as select gapless.probe()")
    await owner.execute("update gapless.function_files set checksum = 'other' where name = 'lanes'")
    assert await migrate(database.owner_url) == ["functions/lanes"]
    assert await owner.fetchval("select * from public.mine") == 7
    await owner.execute("drop view public.mine")
    assert await migrate(database.owner_url) == []
    assert await there(owner, "probe") == []


async def test_a_function_of_somebody_else_stays(database: Database, owner: asyncpg.Connection) -> None:
    async with sessions(database.admin_url, 1) as (admin,):
        await admin.execute(PROBE)
    await owner.execute("update gapless.function_files set checksum = 'other' where name = 'lanes'")
    assert await migrate(database.owner_url) == ["functions/lanes"]
    assert await there(owner, "probe") == ["gapless.probe()"]


async def test_a_function_that_is_defined_again_before_it_was_dropped_stays(
    database: Database, owner: asyncpg.Connection
) -> None:
    await owner.execute(f"comment on function gapless.holders() is '{migrating.SUPERSEDED}'")
    await owner.execute("update gapless.function_files set checksum = 'other' where name = 'lanes'")
    assert await migrate(database.owner_url) == ["functions/lanes"]
    assert await there(owner, "holders") == ["gapless.holders()"]


@asynccontextmanager
async def of_before(database: Database, folder: Path) -> AsyncIterator[tuple[Queues, Subscription]]:
    """An installation that has all functions in one schema."""
    older = folder / "functions"
    shutil.copytree(migrating.FUNCTIONS_DIR, older)
    for file in older.iterdir():
        file.write_text(file.read_text().replace("gapless_internal.", "gapless."))
    roles = folder / "roles.sql"
    roles.write_text(migrating.ROLES_FILE.read_text().replace("gapless_internal.", "gapless."))
    with pytest.MonkeyPatch.context() as before:
        before.setattr(migrating, "FUNCTIONS_DIR", older)
        before.setattr(migrating, "ROLES_FILE", roles)
        await migrate(database.owner_url)
    async with open_queues(database) as queues:
        await queues.owner.execute("drop schema gapless_internal; select gapless.fence()")
        yield queues, await queues.subscribe("work", "a")
        assert not await there(queues.owner, "scan", "seat", "bury", "flush_outbox", schema="gapless")
        await check_log(queues.owner)


async def test_functions_move_while_a_worker_calls_them(empty: Database, tmp_path: Path) -> None:
    over = asyncio.Event()
    calls = [0, 0, 0]
    async with of_before(empty, tmp_path) as (queues, subscription), sessions(empty.owner_url, 1) as (sql,):

        async def works() -> None:
            while not over.is_set():
                await queues.publish("a", *range(20))
                await queues.take_all(subscription)
                calls[0] += 1

        async def looks() -> None:
            while not over.is_set():
                await queues.reader.tick()
                await queues.deliveries.reap(subscription.id, ALL, 100)
                calls[1] += 1

        async def publishes() -> None:
            while not over.is_set():
                await publish(sql, "b")
                calls[2] += 1

        async def moves() -> None:
            await eventually(lambda: min(calls) > 5)
            assert "functions/claim" in await migrate(empty.owner_url)
            before = calls.copy()
            await eventually(lambda: all(now > then + 5 for now, then in zip(calls, before, strict=True)))
            over.set()

        async with asyncio.TaskGroup() as group:
            for work in (works, looks, publishes, moves):
                group.create_task(work())


async def test_a_call_under_way_goes_on_in_the_text_that_it_began_with(
    empty: Database, tmp_path: Path
) -> None:
    """It waits for a lock while the new functions come, and calls those of before once it has it."""
    async with (
        of_before(empty, tmp_path) as (queues, subscription),
        sessions(empty.owner_url, 1) as (holder,),
    ):
        (published,) = await queues.publish("a", 1)
        held = holder.transaction()
        await held.start()
        await holder.execute("select from gapless.progress for update")
        claiming = await blocked(queues.owner, queues.take(subscription))
        moving = asyncio.ensure_future(migrate(empty.owner_url))

        async def defined() -> bool:
            return await there(queues.owner, "scan", schema="gapless_internal") != []

        await eventually(defined)
        await asyncio.wait([moving], timeout=0.5)
        await held.commit()
        assert [delivery.message.id for delivery in await claiming] == [published]
        assert "functions/claim" in await moving


async def stopped(_: object) -> None:
    """A process that is killed there."""
    raise asyncio.CancelledError


async def there(owner: asyncpg.Connection, *names: str, schema: str = "gapless%") -> list[str]:
    """The functions of these names, with their arguments."""
    found = await owner.fetch(
        "select p.oid::regprocedure::text as name"
        " from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname like $1 and p.proname = any ($2)",
        schema,
        names,
    )
    return [row["name"] for row in found]


async def test_a_server_that_ends_idle_transactions_ends_no_migration(
    database: Database, owner: asyncpg.Connection
) -> None:
    held = (
        "select exists (select from pg_locks where relation = 'gapless.migration_lock'::regclass and granted)"
    )
    async with sessions(database.admin_url, 1) as (admin,):
        await admin.execute(
            f"alter database {database.name} set idle_in_transaction_session_timeout = '50ms'"
        )
    async with _alone(await asyncpg.connect(database.owner_url)):
        await owner.execute("select pg_sleep(0.5)")
        assert await owner.fetchval(held)
