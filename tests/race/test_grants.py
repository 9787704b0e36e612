"""What login roles may do by SQL: the owner grants it, and no argument of the caller changes it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from tests.conftest import Database
from tests.race.queues import Queues
from tests.race.support import sessions

SENT = """
select n.name as namespace, c.name as channel, m.sender from gapless.messages m
join gapless.channels c on c.id = m.channel_id join gapless.namespaces n on n.id = c.namespace_id
order by m.id
"""
TABLES = (
    "namespaces",
    "channels",
    "messages",
    "trims",
    "kept",
    "deleted_channels",
    "subscriptions",
    "progress",
    "deliveries",
    "settled_ahead",
    "gaps",
    "dead_letters",
)
CALLS = """
select format('select %s.%I(%s)', pronamespace::regnamespace, proname,
              (select string_agg('null::' || format_type(t, null), ', ' order by n)
               from unnest(proargtypes) with ordinality as each(t, n)))
from pg_proc
where pronamespace in ('gapless'::regnamespace, 'gapless_internal'::regnamespace)
  and prokind = 'f' and prorettype <> 'trigger'::regtype
"""
"""A call of each function, whose arguments are null."""
REFUSED = asyncpg.InsufficientPrivilegeError


@asynccontextmanager
async def as_role(database: Database, name: str) -> AsyncIterator[asyncpg.Connection]:
    """A session of a login role that was granted nothing yet. Roles are of the whole server, so it is dropped
    at the end."""
    role = f"{name}_{database.name}"
    async with sessions(database.admin_url, 1) as (admin,):
        await admin.execute(f"create role {role} login")
        session = await asyncpg.connect(database.owner_url.replace("gapless_owner@", f"{role}@", 1))
        try:
            yield session
        finally:
            await session.close()
            await admin.execute(f"drop owned by {role}; drop role {role}")


async def grant(owner: asyncpg.Connection, kind: str, session: asyncpg.Connection, more: str = "") -> None:
    role = await session.fetchval("select session_user")
    await owner.execute(f"select gapless.grant_{kind}('{role}'{more and ', ' + more})")


async def revoke(owner: asyncpg.Connection, session: asyncpg.Connection) -> None:
    await owner.execute("select gapless.revoke($1)", await session.fetchval("select session_user"))


async def sent(owner: asyncpg.Connection) -> list[tuple[str, str, str | None]]:
    return [tuple(row) for row in await owner.fetch(SENT)]


async def test_a_publisher_publishes_what_it_was_granted(
    database: Database, owner: asyncpg.Connection
) -> None:
    await owner.execute("select gapless.ensure_namespace('acme')")
    async with as_role(database, "shop") as shop:
        with pytest.raises(REFUSED):
            await shop.execute("select gapless.publish('orders.eu', '1')")
        await grant(owner, "publisher", shop, "'{orders.*,chat}', 'acme', 'shop'")
        await shop.execute(
            "select gapless.publish('orders.eu', '1'), gapless.publish('chat', '2', key => 'k')"
        )
        await shop.execute("select gapless.publish('orders.eu', '1', namespace => 'acme')")
        for channel in ("orders", "orders.eu.1", "other"):
            with pytest.raises(REFUSED, match=f"not granted to publish to channel {channel}"):
                await shop.execute("select gapless.publish($1, '1')", channel)
        for namespace in ("default", "nowhere"):
            with pytest.raises(REFUSED, match="in its own namespace only"):
                await shop.execute("select gapless.publish('chat', '1', namespace => $1)", namespace)
        assert await sent(owner) == [
            ("acme", "orders.eu", "shop"),
            ("acme", "chat", "shop"),
            ("acme", "orders.eu", "shop"),
        ]
        await grant(owner, "publisher", shop)
        await shop.execute("select gapless.publish('anything', '1')")
        assert (await sent(owner))[3:] == [("default", "anything", None)]
        await revoke(owner, shop)
        with pytest.raises(REFUSED):
            await shop.execute("select gapless.publish('anything', '1')")


async def test_a_login_without_a_grant_calls_no_function(
    database: Database, owner: asyncpg.Connection
) -> None:
    """Each function of the schemas is called, as a login that was granted nothing, and as one whose grants
    were ended."""
    calls = await owner.fetch(CALLS)
    assert len(calls) > 50
    async with as_role(database, "shop") as shop, as_role(database, "left") as left:
        await grant(owner, "publisher", left)
        await grant(owner, "reader", left)
        await revoke(owner, left)
        for session in (shop, left):
            for (call,) in calls:
                with pytest.raises(REFUSED):
                    await session.execute(call)


async def test_a_member_of_the_group_alone_may_publish_nothing(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with as_role(database, "shop") as shop, sessions(database.admin_url, 1) as (admin,):
        await admin.execute(f"grant gapless_publisher to {await shop.fetchval('select session_user')}")
        with pytest.raises(REFUSED, match="was not granted to publish") as refusal:
            await shop.execute("select gapless.publish('a', '1', namespace => 'default')")
        assert "gapless.grant_publisher('shop" in (refusal.value.hint or "")


async def test_the_owner_publishes_anywhere(owner: asyncpg.Connection) -> None:
    await owner.execute("select gapless.ensure_namespace('acme')")
    await owner.execute("select gapless.publish('a', '1'), gapless.publish('a', '1', namespace => 'acme')")
    assert await sent(owner) == [("default", "a", None), ("acme", "a", None)]
    with pytest.raises(asyncpg.InvalidParameterValueError, match="namespace 'nowhere' does not exist"):
        await owner.execute("select gapless.publish('a', '1', namespace => 'nowhere')")


async def test_a_session_cannot_pass_for_another_role(database: Database, owner: asyncpg.Connection) -> None:
    async with as_role(database, "shop") as shop, as_role(database, "other") as other:
        await grant(owner, "publisher", shop, "'{orders}'")
        await grant(owner, "publisher", other, "'{chat}'")
        theirs = await other.fetchval("select session_user")
        for statement in (f"set role {theirs}", f"set session authorization {theirs}"):
            with pytest.raises(REFUSED):
                await shop.execute(statement)
        # A function of the other role's own works with the rights of whoever is logged in.
        with pytest.raises(REFUSED, match="channel chat"):
            await shop.execute("select gapless.publish('chat', '1')")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("'nobody_here'", "does not exist: create it first"),
        ("'gapless_service'", "is for a login role of yours"),
        ("'pg_read_all_data'", "is for a login role of yours"),
        ("'gapless_owner'", "owns Gapless and needs no grant"),
        ("null", "does not exist"),
        ("'{role}', '{{}}'", "must be names or patterns"),
        ("'{role}', null", "must be names or patterns"),
        ("'{role}', '{{a.>.b}}'", "must be names or patterns"),
        ("'{role}', array['a', null]", "must be names or patterns"),
        ("'{role}', array['a|^.*$']", "must be names or patterns"),
        ("'{role}', array(select 'a.' || n || '.*' from generate_series(1, 171) n)", "more than 512 tokens"),
        ("'{role}', '{{>}}', 'nowhere'", "namespace 'nowhere' does not exist"),
        ("'{role}', '{{>}}', null", "namespace null does not exist"),
        ("'{role}', '{{>}}', 'default', ''", "sender: must be"),
        ("'{role}', '{{>}}', 'default', E'a\\nb'", "sender: must be"),
    ],
)
async def test_a_grant_that_means_nothing_is_refused(
    database: Database, owner: asyncpg.Connection, arguments: str, says: str
) -> None:
    async with as_role(database, "shop") as shop:
        role = await shop.fetchval("select session_user")
        with pytest.raises(asyncpg.PostgresError, match=says):
            await owner.execute(f"select gapless.grant_publisher({arguments.format(role=role)})")
        assert await owner.fetchval("select count(*) from gapless.role_grants") == 0


async def test_the_owner_keeps_its_rights(owner: asyncpg.Connection) -> None:
    """A grant of its own, which earlier versions gave it, is revoked."""
    await owner.execute(
        "insert into gapless.role_grants (role, kind, namespace_id, channels, regex)"
        " select 'gapless_owner', 'publisher', n.id, '{>}', '.' from gapless.namespaces n"
    )
    await owner.execute("select gapless.revoke('gapless_owner')")
    await owner.execute("select gapless.publish('a', '1')")
    assert await sent(owner) == [("default", "a", None)]


async def test_a_grant_lets_its_role_connect(database: Database, owner: asyncpg.Connection) -> None:
    async with as_role(database, "shop") as shop:
        await owner.execute(f"revoke connect on database {database.name} from public")
        await grant(owner, "publisher", shop)
        may = "select has_database_privilege(session_user, current_database(), 'connect')"
        assert await shop.fetchval(may)


async def test_only_the_owner_grants(database: Database, owner: asyncpg.Connection) -> None:
    async with as_role(database, "shop") as shop, sessions(database.service_url, 1) as (service,):
        await grant(owner, "publisher", shop)
        await grant(owner, "reader", shop)
        for session in (shop, service):
            for call in ("grant_publisher('shop')", "grant_reader('shop')", "revoke('shop')"):
                with pytest.raises(REFUSED):
                    await session.execute(f"select gapless.{call}")


async def stage(session: asyncpg.Connection, query: str, channel: str = "a") -> uuid.UUID:
    """An attempt of a row at batch 0 of a query."""
    attempt = uuid.uuid4()
    await session.fetchval(
        "select gapless.spark_stage(null, $1, 0, 'run', $2, 0, array[$3], '{1}', null, null, '{1}', null,"
        " null, null)",
        query,
        attempt,
        channel,
    )
    return attempt


async def bind(session: asyncpg.Connection, query: str, attempt: uuid.UUID) -> None:
    await session.execute(BIND, query, attempt)


BIND = "select gapless.spark_bind(null, $1, 0, array[$2::uuid], '{1}', 1, true)"
PUBLISH = "select gapless.spark_publish(null, $1, 0, 100, 1000, 100)"


async def test_a_query_of_spark_is_of_one_role(database: Database, owner: asyncpg.Connection) -> None:
    async with as_role(database, "shop") as shop, as_role(database, "other") as other:
        await grant(owner, "publisher", shop, "'{a}', 'default', 'shop'")
        await grant(owner, "publisher", other)
        mine, theirs = await stage(shop, "q"), await stage(other, "theirs")
        with pytest.raises(REFUSED, match="not granted to publish to channel b"):
            await stage(shop, "q", "b")
        tidy = "select gapless.spark_tidy(null, $1, 0, 100)"
        calls: list[tuple[str, tuple[Any, ...]]] = [
            (BIND, ("q", mine)),
            (PUBLISH, ("q",)),
            (tidy, ("q",)),
        ]
        for sql, arguments in calls:
            with pytest.raises(REFUSED, match="writes this query"):
                await other.execute(sql, *arguments)
        with pytest.raises(REFUSED, match="writes this query"):
            await stage(other, "q")
        await other.execute("select gapless.spark_discard($1)", [mine, theirs])
        assert [r["id"] for r in await owner.fetch("select id from gapless.spark_attempts")] == [mine]
        await bind(shop, "q", mine)
        await shop.execute(PUBLISH, "q")
        await shop.execute(tidy, "q")
        assert await sent(owner) == [("default", "a", "shop")]
        # Another login goes on with the query once the owner ended the first one's grant.
        await revoke(owner, shop)
        await other.execute(PUBLISH, "q")
        assert await sent(owner) == [("default", "a", "shop")]


async def fill(owner: asyncpg.Connection) -> dict[tuple[str, str], int]:
    """Messages in two channels of two namespaces; the channels' ids."""
    await owner.execute("select gapless.ensure_namespace('acme')")
    for namespace in ("default", "acme"):
        for channel in ("chat.a", "secret"):
            await owner.execute("select gapless.publish($1, '1', namespace => $2)", channel, namespace)
    rows = await owner.fetch(
        "select n.name as namespace, c.name, c.id from gapless.channels c"
        " join gapless.namespaces n on n.id = c.namespace_id"
    )
    return {(row["namespace"], row["name"]): row["id"] for row in rows}


async def visible(session: asyncpg.Connection) -> dict[str, int]:
    """How many rows of each table it sees."""
    return {name: await session.fetchval(f"select count(*) from gapless.{name}") for name in TABLES}


async def test_a_reader_sees_what_it_was_granted(database: Database, owner: asyncpg.Connection) -> None:
    channels = await fill(owner)
    async with as_role(database, "spy") as reader:
        with pytest.raises(REFUSED):
            await reader.fetch("select * from gapless.messages")
        await grant(owner, "reader", reader, "'{chat.>}', 'acme'")
        seen = "select channel_id from gapless.messages"
        assert [r["channel_id"] for r in await reader.fetch(seen)] == [channels["acme", "chat.a"]]
        assert [r["name"] for r in await reader.fetch("select name from gapless.channels")] == ["chat.a"]
        assert [r["name"] for r in await reader.fetch("select name from gapless.namespaces")] == ["acme"]
        for key, id_ in channels.items():
            seq = await reader.fetchval("select gapless.seq_at($1, 99)", id_)
            assert seq == (1 if key == ("acme", "chat.a") else None)
        await owner.execute(
            "select gapless.publish('chat.new', '1', namespace => 'acme'),"
            " gapless.publish('new', '1', namespace => 'acme')"
        )
        assert await reader.fetchval("select count(*) from gapless.messages") == 2
        await grant(owner, "reader", reader, "'{>}', 'acme'")
        assert await reader.fetchval("select count(*) from gapless.messages") == 4
        await revoke(owner, reader)
        with pytest.raises(REFUSED):
            await reader.fetch(seen)


async def test_a_predicate_of_the_reader_is_not_shown_other_rows(
    database: Database, owner: asyncpg.Connection
) -> None:
    """Row security is a barrier: a function of the reader's own is called after it, whatever it costs."""
    await fill(owner)
    async with as_role(database, "spy") as reader, sessions(database.admin_url, 1) as (admin,):
        await grant(owner, "reader", reader, "'{chat.>}', 'acme'")
        role = await reader.fetchval("select session_user")
        await admin.execute(f"grant create on database {database.name} to {role}")
        await reader.execute("create schema spying")
        await reader.execute(
            "create function spying.look(bigint) returns boolean language plpgsql cost 0.0001 as"
            " $$ begin raise notice 'saw %', $1; return true; end $$"
        )
        told: list[str] = []
        reader.add_log_listener(lambda _, message: told.append(message.message))
        await reader.fetch("select * from gapless.messages where spying.look(id)")
        await reader.fetch("select * from gapless.channels where spying.look(id)")
        assert len(told) == 2


async def test_others_see_all_as_before(database: Database, owner: asyncpg.Connection) -> None:
    """The service sees all, one of the version before too until a reader is granted something. So does
    whoever may read all data."""
    await fill(owner)
    async with (
        as_role(database, "spy") as reader,
        as_role(database, "dba") as dba,
        sessions(database.admin_url, 1) as (admin,),
        sessions(database.service_url, 2) as (service, before),
    ):
        everything = await visible(owner)
        await before.execute("set row_security = off")
        assert await visible(before) == everything
        await admin.execute(f"grant pg_read_all_data to {await dba.fetchval('select session_user')}")
        await grant(owner, "reader", reader)
        for session in (service, dba, admin):
            assert await visible(session) == everything
        assert (await visible(reader))["messages"] == 2


async def test_a_reader_of_all_channels_sees_the_queues_of_its_namespace(
    database: Database, owner: asyncpg.Connection, queues: Queues
) -> None:
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1, 2)
    first, _ = await queues.take(subscription)
    await queues.reject(subscription, first)
    tables = ("subscriptions", "progress", "deliveries", "dead_letters", "kept")
    async with as_role(database, "spy") as reader:
        for more, all_seen in (("", True), ("'{q}'", False), ("'{>}', 'acme'", False)):
            if "acme" in more:
                await owner.execute("select gapless.ensure_namespace('acme')")
            await grant(owner, "reader", reader, more)
            assert await reader.fetchval("select gapless.reads_everything()") == all_seen
            seen, everything = await visible(reader), await visible(owner)
            assert {name for name in tables if everything[name]} >= {*tables} - {"progress"}
            if all_seen:
                assert seen == everything
            else:
                assert [seen[name] for name in tables[:4]] == [0] * 4
        await grant(owner, "reader", reader)
        assert not await reader.fetchval("select gapless.reads_everything()")
        seen = await visible(reader)
        # Of the ballast in these tables only the owner and the service know.
        assert (seen["subscriptions"], seen["deliveries"], seen["dead_letters"]) == (1, 1, 1)


async def test_a_removed_namespace_takes_its_grants_along(
    database: Database, owner: asyncpg.Connection
) -> None:
    id_ = await owner.fetchval("select gapless.ensure_namespace('acme')")
    async with as_role(database, "shop") as shop:
        await grant(owner, "publisher", shop, "'{>}', 'acme'")
        assert await owner.fetchval("select gapless.remove_namespace($1)", id_)
        with pytest.raises(REFUSED):
            await shop.execute("select gapless.publish('a', '1')")


async def test_readers_are_separated_beside_writers(database: Database, owner: asyncpg.Connection) -> None:
    """The first grant to a reader locks each table. It gives way to whoever holds one, and comes again."""
    await fill(owner)
    async with as_role(database, "spy") as reader, sessions(database.owner_url, 2) as (writer, another):
        role = await reader.fetchval("select session_user")
        held = writer.transaction()
        await held.start()
        await writer.execute("lock table gapless.deliveries in row exclusive mode")
        granting = asyncio.ensure_future(another.execute("select gapless.grant_reader($1)", role))
        # It holds messages while it waits for deliveries, which the writer has, who wants messages.
        for _ in range(20):
            await writer.fetch("select count(*) from gapless.messages")
            await writer.execute("select pg_sleep(0.01)")
        assert not granting.done()
        await held.rollback()
        await granting
        assert (await visible(reader))["messages"] == 2
