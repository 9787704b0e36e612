"""Changes published by SQL: `gapless.publish(…, target => …)`, judged when the transaction commits."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from tests.conftest import Database
from tests.race.support import check_log, sessions
from tests.race.test_grants import as_role, grant

LATEST = "select id, version, deleted, replies from gapless.latest order by id"


async def change(session: asyncpg.Connection, target: int, action: str, **more: Any) -> None:
    """Publish a change to channel `a`, with these named arguments."""
    names = list(more)
    given = "".join(f", {name} => ${number}" for number, name in enumerate(names, 3))
    await session.execute(
        f"select gapless.publish('a', '7', target => $1, action => $2{given})", target, action, *more.values()
    )


async def newest(owner: asyncpg.Connection) -> int:
    return int(await owner.fetchval("select max(id) from gapless.messages"))


async def test_changes_are_folded_when_the_transaction_commits(
    database: Database, owner: asyncpg.Connection
) -> None:
    for number in range(3):
        await owner.execute("select gapless.publish('a', $1::text::jsonb)", str(number))
    first = await newest(owner) - 2
    async with sessions(database.owner_url, 1) as (session,), session.transaction():
        await change(session, first, "update")
        await change(session, first, "annotate", annotation='lo"ve', mode="distinct", key="👍")
        await change(session, first, "reply", type="answer")
        await change(session, first + 1, "delete", through=first + 2)
        assert await owner.fetch(LATEST) == []
    log = await owner.fetch("select id, type, key, change::text from gapless.messages order by id offset 3")
    assert [row["change"] for row in log] == [
        f'{{"target":{first},"action":"update"}}',
        f'{{"target":{first},"action":"annotate","annotation":"lo\\"ve","mode":"distinct"}}',
        f'{{"target":{first},"action":"reply"}}',
        f'{{"target":{first + 1},"action":"delete","through":{first + 2}}}',
    ]
    assert (log[1]["key"], log[2]["type"]) == ("👍", "answer")
    assert [tuple(row) for row in await owner.fetch(LATEST)] == [
        (first, log[2]["id"], False, 1),
        (first + 1, log[3]["id"], True, 0),
    ]
    told = await owner.fetchval(
        "select gapless.annotations_of(channel_id, id) from gapless.latest order by id limit 1"
    )
    assert told == '{ "lo\\"ve" : {"keys": {"👍": 1}, "distinct": 1} }'
    await check_log(owner)


async def test_what_cannot_be_changed_ends_the_transaction(owner: asyncpg.Connection) -> None:
    await owner.execute("select gapless.publish('a', '1')")
    target = await newest(owner)
    await change(owner, target, "update")
    update = await newest(owner)
    for number, more, state in (
        (target + 1000, {}, "GL404"),
        (update, {}, "22023"),
        (target, {"expected_version": target}, "GL409"),
    ):
        await owner.execute("begin; select gapless.publish('a', '2')")
        await change(owner, number, "update", **more)
        with pytest.raises(asyncpg.PostgresError) as refused:
            await owner.execute("commit")
        assert refused.value.sqlstate == state
        assert await newest(owner) == update, "all of the transaction, or nothing"
    await change(owner, target, "update", expected_version=update)
    async with owner.transaction(isolation="repeatable_read"):
        with pytest.raises(asyncpg.PostgresError) as refused:
            await change(owner, target, "update")
    assert refused.value.sqlstate == "25001"


@pytest.mark.parametrize(
    ("action", "more", "why"),
    [
        ("forget", {}, "action"),
        ("update", {"through": 9}, "through"),
        ("delete", {"through": 1}, "through"),
        ("reply", {"annotation": "like"}, "annotate"),
        ("annotate", {"mode": "flag"}, "annotation"),
        ("annotate", {"annotation": "like"}, "mode"),
        ("annotate", {"annotation": "li\nke", "mode": "flag"}, "annotation"),
        ("annotate", {"annotation": "x" * 65, "mode": "flag"}, "annotation"),
        ("annotate", {"annotation": "like", "mode": "some"}, "mode"),
    ],
)
async def test_what_makes_no_sense_is_refused_at_once(
    owner: asyncpg.Connection, action: str, more: dict[str, Any], why: str
) -> None:
    async with owner.transaction():
        with pytest.raises(asyncpg.InvalidParameterValueError, match=why):
            async with owner.transaction():
                await change(owner, 2, action, **more)


@pytest.mark.parametrize(("action", "is_kept"), [("update", False), ("reply", False), ("delete", True)])
async def test_only_a_deletion_or_an_annotation_needs_no_data(
    owner: asyncpg.Connection, action: str, is_kept: bool
) -> None:
    await owner.execute("select gapless.publish('a', '1')")
    call = f"select gapless.publish('a', null, target => {await newest(owner)}, action => '{action}')"
    if is_kept:
        await owner.execute(call)
    else:
        with pytest.raises(asyncpg.InvalidParameterValueError, match="data: is required"):
            await owner.execute(call)


async def test_a_role_changes_what_its_sender_sent(database: Database, owner: asyncpg.Connection) -> None:
    await owner.execute("select gapless.publish('a', '1')")
    nobodys = await newest(owner)
    async with as_role(database, "shop") as session:
        await grant(owner, "publisher", session, "sender => 'shop'")
        await session.execute("select gapless.publish('a', '2')")
        mine = await newest(owner)
        await change(session, mine, "update")
        await change(session, nobodys, "update")
        # From now on credentials are required.
        await owner.execute("update gapless.log set credentials_required = true")
        await change(session, mine, "delete")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="somebody else"):
            await change(session, nobodys, "update")
        await change(session, nobodys, "reply")
    await change(owner, nobodys, "delete")


async def test_a_publish_without_a_target_is_the_one_it_was(owner: asyncpg.Connection) -> None:
    """Also where its arguments have no names, and no types."""
    given = ["'a'", "'1'", "'key'", "'kind'", "'{}'", "null", "'default'"]
    for count in range(2, len(given) + 1):
        await owner.execute(f"select gapless.publish({', '.join(given[:count])})")
        nulls = ", ".join(["'a'", "'1'", "null", "'kind'", "null", "null", "null"][:count])
        await owner.execute(f"select gapless.publish({nulls})")
    await owner.execute("select gapless.publish($1, $2, $3, $4)", "a", "1", "key", "kind")
    assert await owner.fetchval("select count(*) from gapless.messages where change is null") == 13
