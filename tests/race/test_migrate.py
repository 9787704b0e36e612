"""Many processes start at once, or die half way: the schema is there once and whole."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from app.embedded import EmbeddedPostgres
from db import migrate as migrating
from db.migrate import MigrationError, _alone, function_files, migrate, migrations
from tests.conftest import Database, drop_database
from tests.race.support import sessions
from tests.support import ROOT

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
        file.write("create or replace function gapless.probe() returns integer language sql as 'select 7';\n")
    monkeypatch.setattr(migrating, "FUNCTIONS_DIR", edited)
    assert await migrate(database.owner_url) == ["functions/lanes"]
    assert await owner.fetchval("select gapless.probe()") == 7
    assert not await owner.fetchval("select has_function_privilege('public', 'gapless.probe()', 'execute')")
    assert await migrate(database.owner_url) == []


def test_each_function_is_defined_once() -> None:
    text = "\n".join(function_files().values())
    names = re.findall(r"^create (?:or replace )?function gapless\.(\w+)", text, re.MULTILINE)
    assert sorted(names) == sorted(set(names))
    steps = "\n".join(step.sql for step in migrations())
    assert not re.search(r"create (?:or replace )?function", steps)


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
