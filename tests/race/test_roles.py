"""Nobody writes the log but through its functions: its order does not depend on the service's good will."""

from __future__ import annotations

import asyncpg
import pytest

from db.connect import SERVICE_ROLE, DatabaseConfig, connect
from tests.conftest import Database
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
    "select gapless.flush_outbox()",
    "select gapless.lock_channels(array[1], array['a'], true)",
    "create table gapless.other (n integer)",
]


@pytest.mark.parametrize("statement", FORBIDDEN)
async def test_the_service_cannot(database: Database, statement: str) -> None:
    async with appenders(database, 1) as (appender,):
        await appender.append([one("a")])
    session = await connect(DatabaseConfig(database.service_url), application="test", timeout_s=5)
    try:
        assert await session.fetchval("select current_user") == SERVICE_ROLE
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.FeatureNotSupportedError)):
            await session.execute(statement)
    finally:
        session.terminate()


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
