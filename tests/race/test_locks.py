"""Nobody but the functions of the schema can take the locks that publishing and queues rest on."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from db.connect import SERVICE_ROLE
from subscriptions.engine.maintenance import OVERDUE_S, Maintenance
from tests.conftest import Database
from tests.patience import eventually
from tests.race.queues import Queues
from tests.race.support import appenders, one, publish, sessions, stored

TABLES = ["publishing_lock", "definitions_lock", "trimming_lock", "due_lock", "migration_lock"]
MODES = ["access share", "row share", "share", "exclusive", "access exclusive"]


@pytest.mark.parametrize("role", ["gapless_publisher", "gapless_reader", SERVICE_ROLE, "pg_read_all_data"])
async def test_no_role_can_take_a_lock_that_is_not_its_own(database: Database, role: str) -> None:
    async with sessions(database.admin_url, 1) as (session,):
        # Who may read everything may lock so, which keeps nobody from writing.
        modes = MODES[1:] if role == "pg_read_all_data" else MODES
        await session.execute(f"grant usage on schema gapless to {role}")
        await session.execute(f"set role {role}")
        for table in TABLES:
            for mode in modes:
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await session.execute(f"begin; lock table gapless.{table} in {mode} mode")
                await session.execute("rollback")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await session.execute("select from gapless.progress for update")


async def test_no_function_waits_for_a_lock_that_anybody_may_take(owner: asyncpg.Connection) -> None:
    """An advisory lock is nobody's: whoever may connect can take it, and keep it."""
    found = await owner.fetch(
        "select p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname in ('gapless', 'gapless_internal') and p.prosrc ~ 'advisory'"
    )
    # These two tell whether a process is there. They wait for no lock, and count no stranger's.
    assert {row["proname"] for row in found} <= {"enter", "departed"}


async def test_advisory_locks_of_a_stranger_stop_nothing(database: Database, queues: Queues) -> None:
    """Those that Gapless once used, taken by somebody else in every way there is."""
    subscription = await queues.subscribe("q")
    async with sessions(database.owner_url, 1) as (stranger,), appenders(database, 1) as (appender,):
        await stranger.execute(
            "select pg_advisory_lock(1195462739, n), pg_advisory_lock_shared(1195462739, n),"
            " pg_advisory_lock(1195462741, n) from generate_series(1, 10) n"
        )
        stored((await appender.append([one("q", "1")]))[0])
        (delivery,) = await queues.take(subscription)
        assert await queues.ack(subscription, delivery) == ["acked"]
        assert await queues.settled() == 1
        assert await queues.owner.fetchval("select gapless.roll_segment(0)") in (True, False)


async def test_whoever_publishes_is_seen_until_it_has_ended(
    database: Database, owner: asyncpg.Connection
) -> None:
    """Also where it holds so many locks that its own does not stay where it was."""
    async with sessions(database.owner_url, 1) as (session,):
        transaction = session.transaction()
        await transaction.start()
        me = await session.fetchval(
            "select virtualtransaction from pg_locks where pid = pg_backend_pid() and locktype = 'virtualxid'"
        )
        await session.fetch(
            "select * from gapless.append('{1}', '{a}', true, null, null, null, null, null,"
            " '{1}', '{1}', '{message}', null, '{1}', null, null, null, null)"
        )
        assert await owner.fetchval("select gapless.holders()") == [me]
        # Whoever asks for it alone moves the lock from the backend's own few to the table of all.
        asking = asyncio.ensure_future(owner.execute("select gapless.delete_channel(1, 'a')"))
        async with sessions(database.owner_url, 1) as (watcher,):

            async def moved() -> bool:
                return bool(
                    await watcher.fetchval(
                        "select exists (select from pg_locks where not granted and mode = 'ExclusiveLock')"
                    )
                )

            await eventually(moved)
            assert await watcher.fetchval("select holders from gapless.tick()") == [me]
            await transaction.rollback()
            await asking
            assert await watcher.fetchval("select holders from gapless.tick()") == []


async def test_whoever_holds_ids_for_too_long_is_ended(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """It has taken its limits in time away; readers of several channels wait, and its channel is locked."""
    now = 1000.0
    maintenance = Maintenance(queues.maintenance, lambda: 0, clock=lambda: now)
    async with sessions(database.owner_url, 1) as (session,), appenders(database, 1) as (appender,):
        await session.execute("begin")
        await session.fetch(
            "select * from gapless.append('{1}', '{a}', true, null, null, null, null, null,"
            " '{1}', '{1}', '{message}', null, '{1}', null, null, null, null)"
        )
        assert (await maintenance.run_once()).ended_publishers == 0
        now += OVERDUE_S - 1
        await publish(owner, "b")
        assert (await maintenance.run_once()).ended_publishers == 0
        now += 2
        assert (await maintenance.run_once()).ended_publishers == 1
        assert stored((await appender.append([one("a")]))[0]).positions[0].seq == 1
        assert (await maintenance.run_once()).ended_publishers == 0
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)):
            await session.execute("commit")


async def test_one_that_may_not_be_ended_is_told(
    database: Database, queues: Queues, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    maintenance = Maintenance(queues.maintenance, lambda: 0, clock=lambda: now)
    async with sessions(database.admin_url, 1) as (session,):
        await session.execute("begin; lock table gapless.publishing_lock in row share mode")
        await maintenance.run_once()
        now += OVERDUE_S + 1
        assert (await maintenance.run_once()).ended_publishers == 0
        assert "pg_signal_backend" in caplog.text
        await session.execute("rollback")
