"""Changes that hold only for the definition that was seen: of two that saw the same, one counts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from subscriptions.domain.delivery import AppliesTo, Definition, Definitions, Policy
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Retention
from tests.conftest import Database
from tests.race.queues import Queues, step
from tests.race.support import IMMEDIATE, blocked, publish, sessions

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
    "pause": lambda q, tags: q.subscriptions.pause("default", "q", True, if_match=tags),
    "resume": lambda q, tags: q.subscriptions.pause("default", "q", False, if_match=tags),
    "seek": lambda q, tags: q.subscriptions.seek("default", "q", "latest", if_match=tags),
    "try_seek": lambda q, tags: q.subscriptions.try_seek("default", "q", "latest", if_match=tags),
    "purge": lambda q, tags: q.subscriptions.purge("default", "q", None, if_match=tags),
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
    assert {error.code for error in done if isinstance(error, GaplessError)} == {Code.PRECONDITION_FAILED}
    assert sum(isinstance(error, GaplessError) for error in done) == 7
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
        async with sessions(database.owner_url, 1) as (session,):
            first = await step(session, change)
            importing = queues.policies.apply("default", wanted, dry_run=False, if_match=(seen,))
            late = await blocked(owner, importing)
            await first.end()
            assert await refused(late) is Code.PRECONDITION_FAILED, change
        seen = (await queues.policies.definitions("default")).tag
    await queues.policies.apply("default", wanted, dry_run=False, if_match=(seen,))
    assert (await queues.policies.definitions("default")).tag != seen


async def test_what_a_refused_change_found_stays(queues: Queues) -> None:
    subscription = await queues.subscribe("q", "p", "q")
    await queues.publish("q", 1, 2)
    for how in ("pause", "seek", "try_seek", "purge"):
        assert await refused(CHANGES[how](queues, ("other",))) is Code.PRECONDITION_FAILED
    stats = await queues.stats("q")
    assert (stats.lag, stats.purged, subscription.paused) == (2, 0, False)
    seen = (await tag(queues),)
    assert await queues.subscriptions.purge("default", "q", await queues.settled(), if_match=seen) == 2


async def test_a_change_of_the_definition_ends_a_purge(
    queues: Queues, owner: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had purged by then is told; of the new definition nothing goes."""
    monkeypatch.setattr("db.subscriptions.PURGE_LIMIT", 3)
    await queues.subscribe("q", "q", filter={"types": ["message"]})
    await queues.publish("q", *range(100))
    seen = (await tag(queues),)
    # The change comes right behind the first piece.
    await owner.execute(
        """create function public.change() returns trigger language plpgsql security definer as $$ begin
               update gapless.subscriptions set own = own || '{"ack_wait": 9}' where name = 'q';
               return null;
           end $$;
           create constraint trigger change after update on gapless.progress deferrable initially deferred
           for each row when (new.purged > old.purged) execute function public.change()"""
    )
    purged = await queues.subscriptions.purge("default", "q", await queues.settled(), if_match=seen)
    stats = await queues.stats("q")
    assert (purged, stats.purged, stats.lag) == (purged, purged, 100 - purged)
    assert 0 < purged < 100


SET = "select gapless.set_channel(1, 'c', '{\"max_age\": 9}', true)"
CHANNEL_CHANGES: dict[str, Change] = {
    "put": lambda q, tags: q.channels.put("default", "c", Retention(7), None, if_match=tags),
    "patch": lambda q, tags: q.channels.patch("default", "c", {"max_age": 7}, if_match=tags),
    "delete": lambda q, tags: q.channels.delete("default", "c", if_match=tags),
}


async def channel_tag(queues: Queues) -> str:
    return (await queues.channels.get("default", "c")).tag


@pytest.mark.parametrize("how", CHANNEL_CHANGES)
@pytest.mark.parametrize("commits", [True, False])
async def test_a_change_of_a_channel_judges_what_the_one_before_left(
    database: Database, queues: Queues, owner: asyncpg.Connection, how: str, commits: bool
) -> None:
    await queues.channels.put("default", "c", Retention(5), None)
    seen = await channel_tag(queues)
    async with sessions(database.owner_url, 1) as (session,):
        first = await step(session, SET)
        second = await blocked(owner, CHANNEL_CHANGES[how](queues, (seen,)))
        await first.end(commits=commits)
        if commits:
            assert await refused(second) is Code.PRECONDITION_FAILED
            assert (await queues.channels.get("default", "c")).retention == Retention(9)
        else:
            await second


@pytest.mark.parametrize("other", ["set", "publish", "delete"])
async def test_nobody_changes_a_channel_between_the_look_and_the_change(
    database: Database, queues: Queues, owner: asyncpg.Connection, other: str
) -> None:
    """What was looked at is held, but publishers come in between only for its messages."""
    await queues.publish("c", 1)
    seen = await channel_tag(queues)
    statement = {
        "set": SET,
        "publish": "select gapless.publish('c', '2'::jsonb)",
        "delete": "select gapless.delete_channel(1, 'c')",
    }[other]
    async with sessions(database.owner_url, 2) as (session, third):
        look = await step(session, "select gapless_internal.expect_channel(1, 'c', $1)", [seen])
        assert look.rows[0][0] is True
        late = await blocked(owner, third.fetch(statement))
        await look.end()
        await late
    if other == "publish":
        await queues.channels.patch("default", "c", {"max_age": 7}, if_match=(seen,))
    else:
        gone = Code.PRECONDITION_FAILED if other == "set" else Code.CHANNEL_NOT_FOUND
        assert await refused(CHANNEL_CHANGES["patch"](queues, (seen,))) is gone


async def test_a_channel_is_made_only_where_none_is(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    """Not where a publisher makes it at the same moment either."""
    async with sessions(database.owner_url, 1) as (session,):
        transaction = session.transaction()
        await transaction.start()
        await publish(session, "c")
        await session.execute(IMMEDIATE)
        making = queues.channels.put("default", "c", Retention(5), None, if_absent=True)
        late = await blocked(owner, making)
        await transaction.commit()
        assert await refused(late) is Code.PRECONDITION_FAILED
    assert (await queues.channels.get("default", "c")).retention == Retention()
    await queues.channels.delete("default", "c")
    assert (await queues.channels.put("default", "c", Retention(), None, if_absent=True))[1]


async def test_of_many_who_delete_a_channel_that_they_saw_one_does(queues: Queues) -> None:
    """None of them waits for another who waits for it."""
    await queues.publish("c", 1)
    seen = (await channel_tag(queues),)
    work = [queues.channels.delete("default", "c", if_match=seen) for _ in range(8)]
    done = await asyncio.gather(*work, return_exceptions=True)
    assert done.count(None) == 1
    refusals = [error.code for error in done if isinstance(error, GaplessError)]
    assert refusals == [Code.CHANNEL_NOT_FOUND] * 7


async def test_the_tag_of_a_channel_changes_with_its_own_settings(queues: Queues) -> None:
    await queues.publish("c", 1)
    first = await channel_tag(queues)
    await queues.publish("c", 2)
    await queues.policies.put("default", Policy("p", "*", AppliesTo.CHANNELS, 0, {"max_messages": 1}))
    await queues.maintenance.trim_channels(10)
    assert await channel_tag(queues) == first
    changed = await queues.channels.patch("default", "c", {"max_age": 5})
    assert changed.tag != first
    assert (await queues.channels.patch("default", "c", {"max_age": None})).tag == first
    await queues.channels.delete("default", "c")
    await queues.publish("c", 1)
    assert await channel_tag(queues) != first
