"""What was backed up comes back, both ways, and a restore that cannot be done changes nothing."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.embedded import EmbeddedPostgres, HomeLock, cluster
from app.embedded.identity import own_identity
from db.migrate import migrate
from tests.embedded.support import query
from tests.support import ROOT

PUBLISH = "select 1 from gapless.publish('shop.orders', '{}'::jsonb)"
NEWEST_FENCE = "select kind from gapless.fences order by number desc limit 1"
STORED = "select count(*) from gapless.messages"
Gapless = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def gapless(home: Path) -> Gapless:
    """The command, on this home. What would lead a tool of Postgres astray is in its environment."""

    def run(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GAPLESS_")}
        paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")])}
        answer = subprocess.run(
            [sys.executable, "-P", "-m", "app.cli", *map(str, arguments)],
            env={**kept, **paths, "GAPLESS_HOME": str(home), "PGHOST": "nowhere", "PGAPPNAME": "other"},
            capture_output=True,
            text=True,
        )
        assert answer.returncode == code, answer.stdout + answer.stderr
        return answer

    return run


@pytest.fixture
def served(postgres: EmbeddedPostgres) -> Iterator[EmbeddedPostgres]:
    """A home that is served: its lock is held, its schema is made, and a user has tables and a role there."""
    lock = HomeLock(postgres.home)
    lock.take()
    asyncio.run(migrate(postgres.owner_url))
    query(postgres.admin_url, "create role shop login password 'it''s one'")
    query(postgres.owner_url, "select gapless.grant_publisher('shop')")
    query(postgres.owner_url, "grant connect on database gapless to shop")
    query(postgres.owner_url, "create table orders as select 7 as id")
    query(postgres.owner_url, "grant select on orders to shop")
    query(postgres.owner_url, PUBLISH)
    yield postgres
    lock.release()


def stop(server: EmbeddedPostgres) -> None:
    """As the service does when it ends."""
    server.stop()
    # The fixture's own lock goes with its test; here another process is to take it.
    lock = HomeLock(server.home)
    lock.path.unlink()


@pytest.mark.parametrize(
    "options", [pytest.param([], id="base"), pytest.param(["--dump"], id="dump", marks=pytest.mark.drill)]
)
def test_a_backup_comes_back_as_it_was(
    served: EmbeddedPostgres, gapless: Gapless, tmp_path: Path, options: list[str]
) -> None:
    told = "select system_identifier || '/' || timeline_id from pg_control_system(), pg_control_checkpoint()"
    target, history = tmp_path / "monday", query(served.admin_url, told)
    gapless("backup", target, *options)
    assert target.stat().st_mode & 0o777 == 0o700
    query(served.owner_url, PUBLISH)
    query(served.owner_url, "update orders set id = 8")
    stop(served)

    assert "holds data already" in gapless("restore", target, code=1).stderr
    assert "lies in" in gapless("restore", target, "--replace").stderr
    served.start()
    assert query(served.owner_url, STORED) == 1
    assert query(served.url_of("shop"), "select id from orders") == 7
    assert query(served.url_of("shop"), PUBLISH) == 1
    assert query(served.admin_url, told) != history
    assert query(served.owner_url, NEWEST_FENCE) == "moved", "the log knows that it lost its newest past"
    assert asyncio.run(migrate(served.owner_url)) == []
    assert query(served.service_url, "select count(*) from gapless.channels") == 1
    assert query(served.admin_url, "show restore_command") == ""
    [aside] = served.home.glob("postgres.before-*")
    assert cluster.major_of(aside) == cluster.major_of(served.data)


@pytest.mark.drill
def test_a_service_that_is_stopped_is_backed_up_too(served: EmbeddedPostgres, gapless: Gapless) -> None:
    stop(served)
    target = served.home.parent / "stopped"
    gapless("backup", target)
    elsewhere = served.home.parent / "elsewhere"
    gapless("restore", target, "--home", elsewhere)
    assert gapless("psql", "--home", elsewhere, "-Atc", STORED).stdout == "1\n"
    assert "exists already" in gapless("backup", target, code=1).stderr
    missing = target / "no" / "such"
    assert f"mkdir -p {missing.parent}" in gapless("backup", missing, code=1).stderr


def test_a_restore_that_cannot_be_done_changes_nothing(
    served: EmbeddedPostgres, gapless: Gapless, tmp_path: Path
) -> None:
    target = tmp_path / "monday"
    gapless("backup", target)
    assert "served by another Gapless" in gapless("restore", target, "--replace", code=1).stderr
    missing = tmp_path / "tuesday"
    assert f"there is no {missing}" in gapless("restore", missing, code=1).stderr
    stop(served)
    assert f"there is no {missing}" in gapless("restore", missing, code=1).stderr
    assert "is not a backup" in gapless("restore", tmp_path, "--replace", code=1).stderr
    spoilt = max((target / "base").rglob("*"), key=lambda path: path.stat().st_size)
    with spoilt.open("r+b") as file:
        file.seek(5000)
        file.write(b"other")
    assert "checksum mismatch" in gapless("restore", target, "--replace", code=1).stderr
    assert not list(served.home.glob("postgres.*-*"))
    served.start()
    assert query(served.owner_url, STORED) == 1


@pytest.mark.parametrize("moved", [pytest.param(False, marks=pytest.mark.drill), True])
def test_a_restore_that_was_killed_when_it_was_decided_is_ended_by_the_next_start(
    postgres: EmbeddedPostgres, moved: bool
) -> None:
    query(postgres.owner_url, "create table note as select 'old' as text")
    postgres.stop()
    fresh = EmbeddedPostgres(postgres.home.parent / "fresh")
    fresh.start()
    query(fresh.owner_url, "create table note as select 'new' as text")
    fresh.stop()
    partial = cluster.make_partial(postgres.data, own_identity())
    partial.rmdir()
    fresh.data.rename(partial)
    cluster.decide(partial, postgres.data)
    if moved:
        postgres.data.rename(postgres.home / "postgres.before-now")
    postgres.start()
    assert query(postgres.owner_url, "select text from note") == "new"


def test_psql_and_where_the_tools_are(served: EmbeddedPostgres, gapless: Gapless) -> None:
    assert gapless("psql", "-Atc", "select current_user").stdout == "gapless_owner\n"
    assert gapless("psql", "--as", "service", "-Atc", "select current_user").stdout == "gapless_service\n"
    assert gapless("psql", "-c", "no such statement", code=1).stderr.startswith("ERROR:")
    where = dict(line.split(maxsplit=1) for line in gapless("psql", "--where").stdout.splitlines())
    dump = subprocess.run(
        [f"{where['tools']}/pg_dump", "-d", where["url"], "--schema-only"], capture_output=True, text=True
    )
    assert "CREATE TABLE public.orders" in dump.stdout, dump.stderr
