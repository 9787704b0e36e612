"""Whoever takes a lock and then reads must see what was done under it: at `read committed`, or not at all."""

from __future__ import annotations

import asyncio
import re

import asyncpg
import pytest

from db.connect import SESSION, DatabaseConfig, connect
from subscriptions.domain.delivery import AppliesTo, Policy
from tests.conftest import Database
from tests.patience import eventually
from tests.race.queues import Queues
from tests.race.support import publish, sessions

OLD = ["repeatable read", "serializable"]

DECIDING = [
    "select * from gapless.claim(1, 100, 1)",
    "select * from gapless.ack('{1}', '{1}', '{1}')",
    "select * from gapless.nack(1, '{1}', '{1}', null, false, null)",
    "select * from gapless.extend(1, '{1}', '{1}', null)",
    "select * from gapless.give_back_leases(1, '{1}', '{1}', null)",
    "select * from gapless.release(1, '{1}', '{1}', true)",
    "select * from gapless.reap(1, 100, 10)",
    "select gapless.seek_subscription(1, 'q', 'latest')",
    "select gapless.remove_subscription(1, 'q', false, false)",
    "select gapless.compact(0)",
    "select gapless.roll_segment(0)",
    "select gapless.drop_segment(0)",
    "select gapless.trim_channels(1)",
    "select gapless.purge_rows(1)",
    "select gapless.delete_channel(1, 'q')",
    "select gapless.delete_some_channels(1, 1)",
    "select gapless.set_channel(1, 'q', '{}', true)",
    "select gapless.create_subscription(1, 'r', '{a}', '{a}', null, 'latest', '{}')",
    "select gapless.change_subscription(1, 'q', null, null, null, '{}', false)",
    "select gapless.put_policy(1, 'p', '*', '^x$', 'channels', 0, '{}')",
    "select gapless.delete_policy(1, 'p')",
    "select gapless.lock_definitions()",
    "select * from gapless.publish_due('{1}', 10, 1000)",
    "select gapless_internal.set_aside('{1}')",
]

RIGHT_ANYWHERE = {
    "lock_channels": "its rows are locked; one that changed since the snapshot is a serialization failure",
    "begin_to_publish": "ids come from behind the newest fence, whichever it reads; fence refuses by itself",
    "make_channels": "reads nothing",
    "hold_retention": "reads nothing",
    "lock_defined_channels": "called under the definitions lock",
    "refresh_channels": "called under the definitions lock",
    "refresh_subscriptions": "called under the definitions lock",
    "add_segment": "called by roll_segment",
    "remove_segment": "called by drop_segment",
    "replay": "a dead letter that somebody took is a serialization failure; then gapless_internal.set_aside",
    "replay_some": "what somebody took is passed over; then gapless_internal.set_aside",
    "purge_dead_letters": "what somebody took is passed over",
    "remove_aged_letters": "called by purge_rows",
    "empty_namespace": "what somebody took is passed over; remove_namespace finds by itself what is left",
    "purge_idempotency": "what somebody took is passed over",
    "put_ticket": "what somebody took is passed over",
    "spark_stage_changes": "what somebody took is passed over",
    "spark_publish_batch": "the batch's row is locked, and one that changed since is a serialization failure",
    "spark_tidy": "what somebody took is passed over",
    "try_lock_subscription": "refuses by itself",
    "lock_subscriptions": "refuses by itself",
}
LOCKS = re.compile(r"\block table\b|\bfor (?:no key )?(?:update|share)\b", re.IGNORECASE)


@pytest.mark.parametrize("isolation", OLD)
async def test_what_decides_refuses_an_old_snapshot(
    queues: Queues, owner: asyncpg.Connection, isolation: str
) -> None:
    await queues.subscribe("q")
    for statement in DECIDING:
        await owner.execute(f"begin isolation level {isolation}")
        with pytest.raises(asyncpg.ActiveSQLTransactionError):
            await owner.fetch(statement)
        await owner.execute("rollback")


async def test_each_function_that_locks_refuses_or_says_why_not(owner: asyncpg.Connection) -> None:
    found = await owner.fetch(
        "select p.proname, p.prosrc from pg_proc p join pg_namespace n on n.oid = p.pronamespace"
        " where n.nspname in ('gapless', 'gapless_internal')"
    )
    locking = {row["proname"] for row in found if LOCKS.search(row["prosrc"])}
    refusing = {row["proname"] for row in found if "needs_fresh_snapshots" in row["prosrc"]}
    sharing = {row["proname"] for row in found if "gapless_internal.share_definitions" in row["prosrc"]}
    assert locking - refusing - sharing <= set(RIGHT_ANYWHERE)


@pytest.mark.parametrize(
    "setting", ["default_transaction_isolation = 'repeatable read'", "plan_cache_mode = force_generic_plan"]
)
async def test_the_service_has_its_own_settings_whatever_its_role_prefers(
    database: Database, setting: str
) -> None:
    config = DatabaseConfig(database.service_url)
    async with sessions(database.admin_url, 1) as (admin,):
        await admin.execute(f"alter database {database.name} set {setting}")
        for other in (
            "timezone = 'Asia/Tokyo'",
            "datestyle = 'German'",
            "intervalstyle = 'iso_8601'",
            "bytea_output = 'escape'",
            "synchronous_commit = off",
            "default_transaction_read_only = on",
            "row_security = off",
            "search_path = 'public'",
            "jit = on",
        ):
            await admin.execute(f"alter database {database.name} set {other}")
    session = await connect(config, application="test", timeout_s=7)
    try:
        expected = {**SESSION, "synchronous_commit": "on", "statement_timeout": "7s", "lock_timeout": "7s"}
        shown = {name: str(await session.fetchval(f"show {name}")) for name in expected}
        shown["datestyle"] = shown["datestyle"].partition(",")[0]
        assert shown == expected
    finally:
        session.terminate()


async def test_a_policy_reaches_the_channel_of_a_publisher_with_an_older_snapshot(
    database: Database, queues: Queues
) -> None:
    """It made the channel after the policy, and by what it saw before: it must see it, or not make it."""
    async with sessions(database.owner_url, 1) as (session,):
        transaction = session.transaction(isolation="repeatable_read")
        await transaction.start()
        await session.fetch("select 1 from gapless.policies")
        await queues.policies.put("default", Policy("c", "*", AppliesTo.CHANNELS, 0, {"max_messages": 3}))
        await publish(session, "new")
        with pytest.raises(asyncpg.SerializationError):
            await transaction.commit()
        async with session.transaction(isolation="repeatable_read"):
            await publish(session, "new")
    assert await queues.owner.fetchval("select max_messages from gapless.channels") == 3


async def test_a_policy_waits_for_the_channel_that_an_older_snapshot_makes(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """The other way round: the channel is there first, though nobody sees it yet."""
    async with sessions(database.owner_url, 2) as (session, other):
        transaction = session.transaction(isolation="repeatable_read")
        await transaction.start()
        await session.fetch(
            "select * from gapless.append('{1}', '{new}', true, null, null, null, null, null,"
            " '{1}', '{1}', '{message}', null, '{1}', null, null, null, null)"
        )
        policy = Policy("c", "*", AppliesTo.CHANNELS, 0, {"max_messages": 3})
        putting = asyncio.ensure_future(queues.policies.put("default", policy))

        async def waits() -> bool:
            waiting = "select count(*) from pg_locks where not granted and relation = $1::regclass"
            return bool(await other.fetchval(waiting, "gapless.definitions_lock"))

        await eventually(waits)
        await transaction.commit()
        await putting
    assert await owner.fetchval("select max_messages from gapless.channels") == 3
