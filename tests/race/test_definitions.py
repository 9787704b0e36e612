"""Whole definitions are imported while others publish, define and take: all of a document, or nothing. What
an import does alone: tests/contract/test_definitions.py."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from subscriptions.domain.delivery import (
    AppliesTo,
    ChannelDefinition,
    Definition,
    Definitions,
    Policy,
)
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.model import Append, NewMessage
from tests.conftest import Database
from tests.patience import PATIENCE_S
from tests.race.queues import Queues, step
from tests.race.support import check_log, sessions, stored, until_waiting


@pytest.fixture
async def for_ever(database: Database) -> None:
    """Who stands in a circle stays there: nobody is thrown out of it to try again."""
    async with sessions(database.admin_url, 1) as (admin,):
        await admin.execute(f"alter database {database.name} set deadlock_timeout = '1h'")


def channels(*names: str, count: int = 5) -> tuple[ChannelDefinition, ...]:
    return tuple(ChannelDefinition(name, {"max_messages": count}) for name in names)


@pytest.mark.usefixtures("for_ever")
async def test_an_import_and_a_publisher_stand_in_no_circle(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """A document in any order, its channels locked in the one order of all."""
    for name in ("a", "b", "x"):
        await queues.publish(name, 0)
    wanted = Definitions(
        channels("b", "x", "a"), policies=(Policy("p", "*", AppliesTo.CHANNELS, 0, {"max_age": 9}),)
    )
    async with sessions(database.owner_url, 1) as (session,):
        held = await step(session, "select from gapless.channels where name = 'x' for update")
        applying = asyncio.create_task(queues.policies.apply("default", wanted, dry_run=False))
        await until_waiting(owner, 1)
        both = Append("default", (NewMessage("a", b"1"), NewMessage("b", b"1")))
        publishing = asyncio.create_task(queues.appender.append([both]))
        await until_waiting(owner, 2)
        await held.end()
        async with asyncio.timeout(PATIENCE_S):
            changes, same = await applying
            stored((await publishing)[0])
    assert (len(changes), same) == (4, 0)
    await check_log(owner)


@pytest.mark.usefixtures("for_ever")
async def test_a_policy_that_moves_and_a_publisher_stand_in_no_circle(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    for name in ("a", "x.1", "x.2"):
        await queues.publish(name, 0)
    await queues.policies.put("default", Policy("p", "a", AppliesTo.CHANNELS, 0, {"max_age": 9}))
    moved = Policy("p", "x.*", AppliesTo.CHANNELS, 0, {"max_age": 9})
    async with sessions(database.owner_url, 1) as (session,):
        held = await step(session, "select from gapless.channels where name = 'x.2' for update")
        moving = asyncio.create_task(queues.policies.put("default", moved))
        await until_waiting(owner, 1)
        both = Append("default", (NewMessage("a", b"1"), NewMessage("x.1", b"1")))
        publishing = asyncio.create_task(queues.appender.append([both]))
        await until_waiting(owner, 2)
        await held.end()
        async with asyncio.timeout(PATIENCE_S):
            assert (await moving)[0] is False
            stored((await publishing)[0])


async def test_imports_at_once_and_everything_else(queues: Queues, owner: asyncpg.Connection) -> None:
    """All of one document or of the other; publishers, policies and subscriptions get on meanwhile."""

    def document(number: int) -> Definitions:
        names = ["a", "b", "c"][:: 1 if number % 2 else -1]
        return Definitions(
            channels(*names, count=number),
            tuple(Definition(name, (name,), "latest", {"max_deliver": number}) for name in names),
            (Policy("p", "*", AppliesTo.CHANNELS, 0, {"max_age": number}),),
        )

    async def publish(offset: int) -> None:
        for turn in range(20):
            names = ["a", "b", "c"][(turn + offset) % 3 :] + ["a", "b", "c"][: (turn + offset) % 3]
            await queues.append(*[NewMessage(name, b"1") for name in names])

    for number in range(1, 7, 2):
        await asyncio.gather(
            *(queues.policies.apply("default", document(number + n % 2), dry_run=n == 5) for n in range(6)),
            publish(number),
            queues.policies.put("default", Policy("q", "*", AppliesTo.CHANNELS, 1, {"max_messages": 99})),
        )
        there = await queues.policies.definitions("default")
        counts = {c.settings["max_messages"] for c in there.channels}
        counts |= {s.settings["max_deliver"] for s in there.subscriptions}
        counts |= {p.definition["max_age"] for p in there.policies if p.name == "p"}
        assert len(counts) == 1, "one document, whole"
        assert await queues.policies.apply("default", document(counts.pop()), dry_run=False) == ([], 7)
    await check_log(owner)


async def test_a_file_undoes_nothing_that_was_changed_since(queues: Queues) -> None:
    """Each worker imports it, at a time of its own: only the first, or a file that changed, does anything."""

    def file(count: int) -> tuple[Definitions, bytes]:
        return Definitions(channels("a", count=count)), b"%d" % count

    async def load(count: int) -> bool:
        wanted, digest = file(count)
        changes, _ = await queues.policies.apply("default", wanted, dry_run=False, digest=digest)
        return bool(changes)

    async def kept() -> int:
        (channel,) = (await queues.policies.definitions("default")).channels
        return int(channel.settings["max_messages"])

    assert sorted(await asyncio.gather(*(load(5) for _ in range(4)))) == [False, False, False, True]
    await queues.policies.apply("default", file(6)[0], dry_run=False)
    assert (await load(5), await kept()) == (False, 6)
    assert (await load(7), await kept()) == (True, 7)
    assert (await load(5), await kept()) == (True, 5)


async def test_a_file_that_was_refused_was_not_imported(queues: Queues) -> None:
    wrong = Definitions(subscriptions=(Definition("q", ("q",), "999999", {}),))
    with pytest.raises(GaplessError):
        await queues.policies.apply("default", wrong, dry_run=False, digest=b"1")
    right = Definitions(channels("a"))
    changes, _ = await queues.policies.apply("default", right, dry_run=False, digest=b"1")
    assert len(changes) == 1
