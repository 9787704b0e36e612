"""Nobody writes the log or a queue but through their functions: no order depends on anybody's good will."""

from __future__ import annotations

import re

import asyncpg
import pytest

from db.connect import SERVICE_ROLE, DatabaseConfig, connect
from db.migrate import ROLES
from db.queries import load
from subscriptions.domain.errors import GaplessError
from tests.conftest import Database
from tests.patience import PATIENCE_S
from tests.race.support import appenders, one, rows, sessions

FORBIDDEN = [
    "insert into gapless.messages (id, channel_id, seq, created_at, type, data)"
    " values (99, 1, 99, now(), 'message', '1')",
    "update gapless.messages set seq = 7",
    "delete from gapless.messages",
    "truncate gapless.messages",
    "insert into gapless.channels (namespace_id, name) values (1, 'b')",
    "update gapless.channels set last_seq = 0",
    "delete from gapless.channels",
    "insert into gapless.outbox (namespace_id, channel, type, data) values (1, 'a', 'message', '1')",
    "select * from gapless.outbox",
    "update gapless.log set trimmed_id = 0",
    "update gapless.idempotency set fingerprint = ''",
    "delete from gapless.idempotency",
    "delete from gapless.trims",
    "delete from gapless.lives",
    "select nextval('gapless.message_id')",
    "select setval('gapless.message_id', 1)",
    "alter sequence gapless.message_id cache 100",
    "drop table gapless.messages",
    "alter table gapless.outbox disable trigger all",
    "select gapless_internal.flush_outbox()",
    "select gapless_internal.lock_channels(array[1], array['a'], true)",
    "create table gapless.other (n integer)",
    "insert into gapless.deliveries select * from gapless.deliveries",
    "update gapless.deliveries set attempts = 0",
    "update gapless.progress set frontier = 0",
    "delete from gapless.settled_ahead",
    "delete from gapless.kept",
    "update gapless.dead_letters set reason = 'hops'",
    "delete from gapless.scheduled",
    "update gapless.policies set priority = 0",
    "update gapless.subscriptions set paused = true",
    "select gapless_internal.set_aside('{1}')",
    "select gapless_internal.forget_deliveries(1)",
    "select gapless_internal.bury(s, null, now()) from gapless.subscriptions s",
    "select gapless_internal.publish_kept(1, '{}', '{}', '{}')",
]


@pytest.mark.parametrize("statement", FORBIDDEN)
async def test_the_service_cannot(database: Database, statement: str) -> None:
    async with appenders(database, 1) as (appender,):
        await appender.append([one("a")])
    session = await connect(DatabaseConfig(database.service_url), application="test", timeout_s=PATIENCE_S)
    try:
        assert await session.fetchval("select current_user") == SERVICE_ROLE
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.FeatureNotSupportedError)):
            await session.execute(statement)
    finally:
        session.terminate()


async def test_a_user_without_the_services_role_is_told_so(database: Database) -> None:
    async with sessions(database.admin_url, 1) as (admin,):
        await admin.execute(f"create role stranger_{database.name} login")
        try:
            url = database.admin_url.replace("postgres@", f"stranger_{database.name}@", 1)
            with pytest.raises(GaplessError, match=f"may not take on the role {SERVICE_ROLE}"):
                await connect(DatabaseConfig(url), application="test", timeout_s=PATIENCE_S)
        finally:
            await admin.execute(f"drop role stranger_{database.name}")


async def test_a_publisher_can_publish_and_nothing_else(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with sessions(database.admin_url, 1) as (session,):
        await session.execute("set role gapless_publisher")
        await session.execute("select gapless.publish('a', '1')")
        for statement in [*FORBIDDEN, "select * from gapless.messages", "select * from gapless.tick()"]:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await session.execute(statement)
    assert len(await rows(owner)) == 1


FUNCTIONS = (
    "select distinct p.proname from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
    " where n.nspname = $1 and ($2::text is null or has_function_privilege($2, p.oid, 'execute'))"
)
SINK = {
    "spark_stage",
    "spark_stage_changes",
    "spark_bind",
    "spark_publish",
    "spark_publish_batch",
    "spark_discard",
    "spark_tidy",
}
SEEING = {"reads_everything", "readable_namespace", "readable_channels", "readable_subscriptions"}
READING = {"tick", "id_before", "seq_at"} | SEEING
OF_OWNERS = {"open_installation", "grant_publisher", "grant_reader", "revoke", "rotate_secret"}
OF_BEFORE = {
    "set_channel",
    "delete_channel",
    "schedule",
    "schedule_for",
    "promote_scheduled",
    "append",
    "transact",
}
"""What a worker of the program before calls, which may still run. Steps of other functions now."""


async def _functions(owner: asyncpg.Connection, schema: str, role: str | None = None) -> set[str]:
    """Those of a schema; with a role, those that it may call."""
    return {row["proname"] for row in await owner.fetch(FUNCTIONS, schema, role)}


async def _may_call(owner: asyncpg.Connection, role: str) -> set[str]:
    return await _functions(owner, "gapless", role)


def called() -> set[str]:
    """What the statements of the service call."""
    return {name for block in load().values() for name in re.findall(r"gapless\.(\w+)\s*\(", block)}


@pytest.mark.parametrize("role", ["public", *ROLES])
async def test_what_only_works_inside_another_function_is_nobodys_to_call(
    owner: asyncpg.Connection, role: str
) -> None:
    assert len(await _functions(owner, "gapless_internal")) > 50
    assert not await _functions(owner, "gapless_internal", role)
    for privilege in ("usage", "create"):
        assert not await owner.fetchval(
            "select has_schema_privilege($1, 'gapless_internal', $2)", role, privilege
        )


async def test_every_function_that_may_be_granted_is_called_or_granted(owner: asyncpg.Connection) -> None:
    granted = {"publish"} | SINK | READING
    assert await _functions(owner, "gapless") == called() | granted | OF_OWNERS | OF_BEFORE


async def test_a_publisher_may_call_what_publishes(owner: asyncpg.Connection) -> None:
    """Whatever a migration makes is everybody's to call until that is taken back."""
    assert await _may_call(owner, "gapless_publisher") == {"publish"} | SINK


async def test_a_reader_may_see_what_is_stored_and_no_secret(
    database: Database, owner: asyncpg.Connection
) -> None:
    assert await _may_call(owner, "gapless_reader") == READING
    async with sessions(database.admin_url, 1) as (session,):
        await session.execute("set role gapless_reader")
        for table in ("messages", "channels", "dead_letters", "deliveries"):
            await session.fetch(f"select * from gapless.{table}")
        await session.fetch("select epoch, trimmed_id from gapless.log")
        await session.fetch("select name, start from gapless.subscriptions")
        for statement in [
            *FORBIDDEN,
            "select hint_secret from gapless.log",
            "select secret from gapless.signing_secrets",
            "select own from gapless.subscriptions",
            "select * from gapless.policies",
            "select * from gapless.spark_chunks",
            "select gapless.publish('a', '1')",
        ]:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await session.execute(statement)


async def test_a_reader_may_see_each_setting_in_force_of_a_subscription(owner: asyncpg.Connection) -> None:
    """`own` and `origins` hold what was given, with the secrets of webhooks."""
    hidden = await owner.fetch(
        "select column_name from information_schema.columns where table_schema = 'gapless'"
        " and table_name = 'subscriptions' and not has_column_privilege('gapless_reader',"
        " 'gapless.subscriptions', column_name, 'select')"
    )
    assert {row["column_name"] for row in hidden} == {"own", "origins", "changed_at"}


async def test_the_service_may_call_what_it_calls(owner: asyncpg.Connection) -> None:
    """What works only inside another function, in its locks, is not the service's to call."""
    mine = called() - OF_OWNERS | {"publish"} | SEEING | OF_BEFORE
    assert await _may_call(owner, "gapless_service") == mine


async def test_every_function_of_the_owner_looks_nowhere_else(owner: asyncpg.Connection) -> None:
    """A name in it means what it meant to whoever wrote it, whatever schemas and tables the caller has."""
    loose = await owner.fetch(
        "select p.oid::regprocedure from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname in ('gapless', 'gapless_internal') and p.prosecdef"
        " and not coalesce(p.proconfig, '{}') @> array['search_path=pg_catalog, pg_temp']"
    )
    assert not loose
