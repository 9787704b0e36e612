"""Policies and definitions change under those who decide: each decision follows one version, whole. What they
do alone: tests/contract/test_policies.py."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
import pytest

from subscriptions.domain.delivery import (
    AppliesTo,
    ChannelDefinition,
    Definitions,
    Policy,
)
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import NewMessage
from tests.conftest import Database
from tests.race.queues import ALL, CLAIM, REAP, Queues, bodies, step
from tests.race.support import blocked, sessions

PUT = "select gapless.put_policy(1, $1, $2, $3, $4, $5, $6)"


def put(name: str, definition: dict[str, Any], applies_to: str = "subscriptions") -> tuple[object, ...]:
    return name, "*", "^[^.]+$", applies_to, 0, json.dumps(definition)


async def settings(queues: Queues, name: str = "q") -> tuple[Any, Any, Any]:
    found = await queues.subscriptions.get("default", name, stats=False)
    return found.settings["ack_wait"], found.settings["max_deliver"], found.origins["ack_wait"]


# --- while others decide


@pytest.mark.parametrize("commits", [True, False])
async def test_a_claim_follows_the_policy_that_is_there(
    database: Database, queues: Queues, owner: asyncpg.Connection, commits: bool
) -> None:
    """It does not wait for a policy, and a policy does not wait for it."""
    subscription = await queues.subscribe("q", ordering="none")
    await queues.publish("q", 1, 2, 3)
    async with sessions(database.service_url, 2) as (one_session, two):
        policy = await step(one_session, PUT, *put("p", {"max_in_flight": 1}))
        assert len(await queues.take(subscription, 1)) == 1
        claim = await step(two, CLAIM, subscription.id, ALL, 1)
        await policy.end(commits=commits)
        await claim.end()
    assert len(await queues.take(subscription, 5)) == (0 if commits else 1)
    assert len(claim.rows) == 2


@pytest.mark.parametrize("deletes_first", [True, False])
async def test_dying_follows_one_version_whole(
    database: Database, queues: Queues, owner: asyncpg.Connection, deletes_first: bool
) -> None:
    """The limit and the route of one version, never the limit of one and the route of the other."""
    await queues.publish("by-policy", 0)
    await queues.policy("p", "*", max_deliver=1, dead_letter={"channel": "by-policy"}, ack_wait=5)
    subscription = await queues.subscribe("q")
    await queues.publish("q", 1)
    await queues.take(subscription)
    await queues.pass_time(6)
    async with sessions(database.service_url, 1) as (session,):
        if deletes_first:
            deleting = await step(session, "select gapless.delete_policy(1, 'p')")
            assert (await queues.deliveries.reap(subscription.id, ALL, 10))[0] == 1
            await deleting.end()
        else:
            reaping = await step(session, REAP, subscription.id, ALL)
            await queues.policies.delete("default", "p")
            await reaping.end()
    (letter,) = await queues.letters()
    assert json.loads(letter.published or b"")["channel"] == "by-policy"
    await queues.publish("q", 2)
    await queues.take(subscription)
    await queues.pass_time(31)
    assert await queues.reap(subscription) == 1
    assert len(await queues.letters()) == 1, "five attempts by default"
    assert bodies(await queues.take(subscription)) == ["2"]


async def test_policies_flap_under_load(queues: Queues) -> None:
    """Whatever version a message dies by, it dies by both of its halves."""
    subscription = await queues.subscribe("q", ordering="none")
    versions: list[dict[str, Any]] = [
        {"max_deliver": 1, "dead_letter": {"channel": "one"}},
        {"max_deliver": 2, "dead_letter": {"channel": "two"}, "backoff": []},
    ]
    await queues.policy("p", "*", **versions[0])
    await queues.publish("q", *range(60))
    done = False

    async def flap() -> None:
        turn = 0
        while not done:
            turn += 1
            await queues.policy("p", "*", **versions[turn % 2])

    async def work() -> None:
        while taken := await queues.take(subscription, 5):
            await queues.nack(subscription, *taken)

    flapping = asyncio.create_task(flap())
    await asyncio.gather(*(work() for _ in range(3)))
    while (await queues.stats("q")).lag:
        await queues.pass_time(60)
        await work()
    done = True
    await flapping
    letters = await queues.letters()
    assert len(letters) == 60
    for letter in letters:
        route = json.loads(letter.published or b"")["channel"]
        assert (route, letter.attempts) != ("two", 1), "the second version allows two attempts"


async def test_a_subscription_made_while_a_policy_comes(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    async with sessions(database.service_url, 1) as (session,):
        policy = await step(session, PUT, *put("p", {"ack_wait": 11}))
        making = await blocked(owner, queues.subscribe("q"))
        await policy.end()
        await making
    assert (await settings(queues))[0] == 11


@pytest.mark.parametrize("commits", [True, False])
async def test_a_channel_made_while_a_policy_comes(
    database: Database, queues: Queues, owner: asyncpg.Connection, commits: bool
) -> None:
    async with sessions(database.service_url, 1) as (session,):
        policy = await step(session, PUT, *put("p", {"max_messages": 2}, "channels"))
        making = await blocked(owner, queues.publish("new", 1))
        await policy.end(commits=commits)
        await making
    assert await owner.fetchval("select max_messages from gapless.channels") == (2 if commits else None)


# --- many of them


async def test_a_channel_gets_its_settings_of_many_policies(
    queues: Queues, owner: asyncpg.Connection
) -> None:
    """Made alone, made with others, or there before: each setting of the policy that wins."""
    for number in range(60):
        pattern = f"t{number % 6}.*" if number % 2 else "*.>"
        rank = number % 7 + number % 2 * 10
        policy = Policy(f"p{number:02}", pattern, AppliesTo.CHANNELS, rank, {"max_messages": number + 1})
        await queues.policies.put("default", policy)
    await queues.policies.put("default", Policy("ttl", "t1.>", AppliesTo.CHANNELS, 0, {"message_ttl": 5}))
    await queues.publish("t1.alone", 1)
    together = [NewMessage(f"t{number}.x", b"1") for number in range(6)]
    await queues.append(*together, NewMessage("other", b"1"))
    made = await owner.fetch("select * from gapless.channels order by name")
    expected = await owner.fetch(
        "select c.name, r.value::integer from gapless.channels c left join lateral"
        " gapless_internal.resolve(1, 'channels', c.name, '{}', '{}') r on r.setting = 'max_messages'"
    )
    assert {row["name"]: row["max_messages"] for row in made} == {
        row["name"]: row["value"] for row in expected
    }
    assert len({row["max_messages"] for row in made}) > 2
    assert {row["name"]: row["message_ttl"] for row in made if row["name"][:2] == "t1"} == {
        "t1.alone": 5,
        "t1.x": 5,
    }
    await owner.execute("select gapless_internal.refresh_channels(1, '{}', '.')")
    assert await owner.fetch("select * from gapless.channels order by name") == made


async def test_there_are_only_so_many_policies(queues: Queues, owner: asyncpg.Connection) -> None:
    await owner.execute(
        "insert into gapless.policies select 1, 'p' || n, 'x', '^x$', 'channels', 0, '{\"max_messages\": 1}'"
        " from generate_series(1, 999) n"
    )
    last = Policy("last", "y", AppliesTo.CHANNELS, 0, {"max_messages": 2})
    assert (await queues.policies.put("default", last))[0] is True
    with pytest.raises(GaplessError) as refused:
        await queues.policies.put("default", Policy("more", "y", AppliesTo.CHANNELS, 0, {"max_messages": 2}))
    assert refused.value.code is Code.RATE_LIMITED
    assert (await queues.policies.put("default", last))[0] is False, "one that is there can change"


async def test_an_import_of_many_channels_writes_them_all(queues: Queues, owner: asyncpg.Connection) -> None:
    """In statements of a thousand: new ones, changed ones, and those that a policy is about."""
    await queues.policies.put("default", Policy("p", "c.*", AppliesTo.CHANNELS, 0, {"message_ttl": 7}))
    await queues.publish("c.7", 1)
    wanted = Definitions(
        tuple(ChannelDefinition(f"c.{n}", {"max_messages": n + 1}) for n in range(2500)), (), (), frozenset()
    )
    changes, same = await queues.policies.apply("default", wanted, dry_run=False)
    assert (len(changes), same) == (2500, 0)
    found = await owner.fetch("select name, max_messages, message_ttl, own, last_seq from gapless.channels")
    assert {row["name"]: row["max_messages"] for row in found} == {f"c.{n}": n + 1 for n in range(2500)}
    assert {row["message_ttl"] for row in found} == {7}
    assert sum(row["last_seq"] for row in found) == 1
    changes, same = await queues.policies.apply("default", wanted, dry_run=False)
    assert (changes, same) == ([], 2500)
