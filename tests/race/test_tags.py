"""Changes that hold only for the definition that was seen: of two that saw the same, one counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from subscriptions.domain.delivery import AppliesTo, Definition, Definitions, Policy
from subscriptions.domain.errors import Code, GaplessError
from tests.conftest import Database
from tests.race.queues import Queues, step
from tests.race.support import blocked, sessions

PATCH = """select gapless.change_subscription(1, 'q', null, null, null, '{"ack_wait": 9}', false)"""
PAUSE = "select gapless.pause_subscription(1, 'q', true)"
DROP = "select gapless.remove_subscription(1, 'q', false, false)"
BIND = "select gapless.replace_channels(1, 'q', '{q}', '{q,r}', '{q,r}', null)"
Change = Callable[[Queues, tuple[str, ...]], Awaitable[Any]]

CHANGES: dict[str, Change] = {
    "put": lambda q, tags: q.subscriptions.put(
        "default", Definition("q", ("x",), "earliest", {"max_deliver": 3}), if_match=tags
    ),
    "patch": lambda q, tags: q.subscriptions.patch("default", "q", None, {"max_deliver": 3}, if_match=tags),
    "bind": lambda q, tags: q.subscriptions.bind("default", "q", ("x",), True, if_match=tags),
    "unbind": lambda q, tags: q.subscriptions.bind("default", "q", ("p",), False, if_match=tags),
    "delete": lambda q, tags: q.subscriptions.delete("default", "q", if_match=tags),
}


async def tag(queues: Queues) -> str:
    return (await queues.subscriptions.get("default", "q", stats=False)).tag


async def refused(work: Awaitable[Any]) -> Code:
    with pytest.raises(GaplessError) as refusal:
        await work
    return refusal.value.code


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("commits", [True, False])
async def test_a_change_waits_for_one_in_flight_and_judges_what_that_left(
    database: Database, queues: Queues, owner: asyncpg.Connection, how: str, commits: bool
) -> None:
    await queues.subscribe("q", "p", "q")
    seen = await tag(queues)
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, PATCH)
        second = await blocked(owner, CHANGES[how](queues, (seen,)))
        await first.end(commits=commits)
        if commits:
            assert await refused(second) is Code.PRECONDITION_FAILED
            stays = await queues.subscriptions.get("default", "q", stats=False)
            assert (stays.channels, stays.settings["ack_wait"], stays.settings["max_deliver"]) == (
                ("p", "q"),
                9,
                5,
            )
        else:
            await second


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("other", [PATCH, PAUSE])
async def test_nobody_changes_it_between_the_look_and_the_change(
    database: Database, queues: Queues, owner: asyncpg.Connection, how: str, other: str
) -> None:
    """What was looked at is held: here the change is still in flight."""
    await queues.subscribe("q", "p", "q")
    seen = await tag(queues)
    async with sessions(database.service_url, 2) as (session, third):
        look = await step(session, "select gapless.expect_subscription(1, 'q', $1)", [seen])
        assert look.rows[0][0] is True
        late = await blocked(owner, third.fetch(other))
        await look.end()
        await late
    assert await refused(CHANGES[how](queues, (seen,))) is Code.PRECONDITION_FAILED


@pytest.mark.parametrize("how", CHANGES)
async def test_one_that_is_made_anew_is_another(queues: Queues, how: str) -> None:
    await queues.subscribe("q", "p", "q")
    seen = await tag(queues)
    await queues.subscriptions.delete("default", "q")
    gone = Code.PRECONDITION_FAILED if how == "put" else Code.SUBSCRIPTION_NOT_FOUND
    assert await refused(CHANGES[how](queues, (seen,))) is gone
    await queues.subscribe("q", "p", "q")
    assert await refused(CHANGES[how](queues, (seen, "other"))) is Code.PRECONDITION_FAILED
    await CHANGES[how](queues, ("other", await tag(queues)))


async def test_of_many_that_saw_the_same_one_counts(queues: Queues) -> None:
    await queues.subscribe("q", "p", "q")
    seen = (await tag(queues),)
    work = [
        queues.subscriptions.patch("default", "q", None, {"ack_wait": 10 + n}, if_match=seen)
        for n in range(8)
    ]
    done = await asyncio.gather(*work, return_exceptions=True)
    won = [one for one in done if not isinstance(one, BaseException)]
    assert len(won) == 1
    assert (await tag(queues)) == won[0].tag != seen[0]


async def test_a_tag_changes_with_the_definition_and_with_nothing_else(queues: Queues) -> None:
    subscription = await queues.subscribe("q", "q", ack_wait=9)
    first = await tag(queues)
    assert first == subscription.tag
    await queues.publish("q", 1, 2)
    await queues.ack(subscription, *await queues.take(subscription))
    await queues.policy("p", "q", max_deliver=9)
    await queues.subscriptions.put("default", Definition("q", ("q",), "earliest", {"ack_wait": 9}))
    await queues.subscriptions.bind("default", "q", ("q",), True)
    await queues.subscriptions.patch("default", "q", None, {"ack_wait": 9, "max_backlog": None})
    await queues.subscriptions.seek("default", "q", "latest")
    assert await tag(queues) == first
    tags = {first}
    for push in ({"url": "http://x", "secret": "whsec_a"}, {"url": "http://x", "secret": "whsec_b"}, None):
        tags.add((await queues.subscriptions.patch("default", "q", None, {"push": push})).tag)
    assert len(tags) == 3, "what is changed back has the tag of before"
    tags.add((await queues.subscriptions.pause("default", "q", True)).tag)
    tags.add((await queues.subscriptions.bind("default", "q", ("r",), True)).tag)
    assert len(tags) == 5


async def test_a_put_for_the_definition_that_was_seen_replaces_it(queues: Queues) -> None:
    await queues.subscribe("q", "q", ack_wait=9, max_backlog=7)
    wanted = Definition("q", ("a", "b.*"), "earliest", {"max_deliver": 2})
    assert await refused(queues.subscriptions.put("default", wanted)) is Code.CONFLICT
    replaced, made = await queues.subscriptions.put("default", wanted, if_match=(await tag(queues),))
    assert (made, replaced.channels, replaced.settings["max_deliver"]) == (False, ("a", "b.*"), 2)
    assert (replaced.origins["ack_wait"], replaced.settings.get("max_backlog")) == ("default", None)
    assert (await queues.subscriptions.put("default", wanted, if_match=("*",)))[0].tag == replaced.tag
    moved = Definition("q", ("a",), "latest", {})
    assert await refused(queues.subscriptions.put("default", moved, if_match=("*",))) is Code.CONFLICT


async def test_made_only_where_nothing_is(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    wanted = Definition("q", ("q",), "earliest", {})
    async with sessions(database.service_url, 1) as (session,):
        making = "select made from gapless.create_subscription(1, 'q', '{q}', '{q}', null, 'earliest', '{}')"
        first = await step(session, making)
        second = await blocked(owner, queues.subscriptions.put("default", wanted, if_absent=True))
        await first.end()
        assert await refused(second) is Code.PRECONDITION_FAILED
    await queues.subscriptions.delete("default", "q")
    assert (await queues.subscriptions.put("default", wanted, if_absent=True))[1]


async def test_policies_have_tags_too(database: Database, queues: Queues, owner: asyncpg.Connection) -> None:
    first, second = (Policy("p", "*", AppliesTo.SUBSCRIPTIONS, 0, {"ack_wait": n}) for n in (1, 2))
    assert await refused(queues.policies.put("default", first, if_match=("*",))) is Code.PRECONDITION_FAILED
    made, seen = await queues.policies.put("default", first, if_absent=True)
    assert (made, (await queues.policies.get("default", "p")).tag) == (True, seen)
    assert await refused(queues.policies.put("default", first, if_absent=True)) is Code.PRECONDITION_FAILED
    async with sessions(database.service_url, 1) as (session,):
        statement = "select gapless.put_policy(1, 'p', '*', '^x$', 'subscriptions', 0, '{\"ack_wait\": 3}')"
        other = await step(session, statement)
        late = await blocked(owner, queues.policies.put("default", second, if_match=(seen,)))
        await other.end()
        assert await refused(late) is Code.PRECONDITION_FAILED
    assert await refused(queues.policies.delete("default", "p", if_match=(seen,))) is Code.PRECONDITION_FAILED
    now = (await queues.policies.get("default", "p")).tag
    made, tag_ = await queues.policies.put("default", second, if_match=(now,))
    assert (made, tag_) == (False, (await queues.policies.get("default", "p")).tag)
    await queues.policies.delete("default", "p", if_match=(tag_,))
    assert await refused(queues.policies.delete("default", "p", if_match=(tag_,))) is Code.NOT_FOUND


async def test_definitions_are_imported_where_nothing_has_changed(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    await queues.subscribe("q", "q")
    wanted = Definitions(policies=(Policy("p", "*", AppliesTo.SUBSCRIPTIONS, 0, {"ack_wait": 2}),))
    seen = (await queues.policies.definitions("default")).tag
    for change in (PATCH, PAUSE, BIND, DROP, "select gapless.set_channel(1, 'c', '{\"max_age\": 9}', false)"):
        async with sessions(database.service_url, 1) as (session,):
            first = await step(session, change)
            importing = queues.policies.apply("default", wanted, dry_run=False, if_match=(seen,))
            late = await blocked(owner, importing)
            await first.end()
            assert await refused(late) is Code.PRECONDITION_FAILED, change
        seen = (await queues.policies.definitions("default")).tag
    await queues.policies.apply("default", wanted, dry_run=False, if_match=(seen,))
    assert (await queues.policies.definitions("default")).tag != seen
