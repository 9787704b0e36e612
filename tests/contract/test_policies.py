"""Policies: which setting is in force, from when on, and how policies come and go, over every adapter."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from subscriptions.domain.delivery import AppliesTo, Policy
from subscriptions.domain.errors import Code
from subscriptions.domain.model import Retention
from tests.contract.bench import Bench, code_of
from tests.contract.test_deliveries import bench, queue

__all__ = ["bench"]


def about_channels(name: str, pattern: str = "*", priority: int = 0, **definition: Any) -> Policy:
    return Policy(name, pattern, AppliesTo.CHANNELS, priority, definition)


def about_subscriptions(name: str, pattern: str = "*", priority: int = 0, **definition: Any) -> Policy:
    return Policy(name, pattern, AppliesTo.SUBSCRIPTIONS, priority, definition)


async def put(bench: Bench, policy: Policy) -> bool:
    made, _ = await bench.policies.put("default", policy)
    return made


async def settings(bench: Bench, name: str = "q") -> tuple[Any, Any, str]:
    found = await bench.lookup.get("default", name, stats=False)
    return found.settings["ack_wait"], found.settings["max_deliver"], found.origins["ack_wait"]


async def kept(bench: Bench, *names: str) -> list[int | None]:
    """How many messages these channels keep."""
    return [(await bench.channels.get("default", name)).retention.max_messages for name in names]


# --- what beats what


async def test_own_beats_policy_and_higher_beats_lower(bench: Bench) -> None:
    await bench.store.subscribe("q", max_deliver=7)
    assert await settings(bench) == (30, 7, "default")
    await put(bench, about_subscriptions("low", "*", 1, ack_wait=10, max_deliver=1))
    await put(bench, about_subscriptions("b", "q", 2, ack_wait=20))
    await put(bench, about_subscriptions("a", "*", 2, ack_wait=21))
    await put(bench, about_subscriptions("other", "x.*", 9, ack_wait=99))
    await put(bench, about_channels("channels", "*", 9, message_ttl=5))
    assert await settings(bench) == (21, 7, "policy:a"), "equal priority: the lesser name"
    await bench.policies.delete("default", "a")
    assert await settings(bench) == (20, 7, "policy:b")
    await put(bench, about_subscriptions("b", "other", 2, ack_wait=20))
    assert await settings(bench) == (10, 7, "policy:low"), "it matches no longer"
    await bench.store.change("q", max_deliver=None, ack_wait=5)
    assert await settings(bench) == (5, 1, "own")
    await bench.policies.delete("default", "low")
    await bench.store.change("q", ack_wait=None)
    assert await settings(bench) == (30, 5, "default")


async def test_each_setting_of_a_channel_is_looked_up_by_itself(bench: Bench) -> None:
    await bench.channels.put("default", "c", Retention(60), None)
    await put(bench, about_channels("low", "*", 1, max_age=5, max_messages=5, message_ttl=5))
    await put(bench, about_channels("high", ">", 2, max_messages=7))
    channel = await bench.channels.get("default", "c")
    assert (channel.retention, channel.message_ttl) == (Retention(60, 7), 5)
    assert channel.origins == {"max_age": "own", "max_messages": "policy:high", "message_ttl": "policy:low"}
    patched = await bench.channels.patch("default", "c", {"max_age": None, "max_messages": 9})
    assert patched.retention == Retention(5, 9)
    assert (patched.origins["max_age"], patched.origins["max_messages"]) == ("policy:low", "own")


async def test_what_is_made_later_begins_with_its_policies(bench: Bench) -> None:
    await put(bench, about_subscriptions("p", ack_wait=10))
    await put(bench, about_channels("c", max_messages=3, message_ttl=60))
    await bench.publish("new", 1)
    await bench.store.subscribe("q")
    assert await settings(bench) == (10, 5, "policy:p")
    channel = await bench.channels.get("default", "new")
    assert (channel.retention.max_messages, channel.message_ttl) == (3, 60)
    assert channel.origins == {"max_messages": "policy:c", "message_ttl": "policy:c"}
    (message,) = await bench.stored("new")
    assert message.expires_at_us == message.created_at_us + 60_000_000
    await bench.policies.delete("default", "c")
    channel = await bench.channels.get("default", "new")
    assert (channel.retention, channel.message_ttl, channel.origins) == (Retention(), None, {})


@pytest.mark.parametrize("pattern", ["new.*", "moved"])
async def test_a_policy_that_changes_lets_go_of_what_it_had(bench: Bench, pattern: str) -> None:
    """It matches others, or is about something else now."""
    names = ("old", "moved", "new.x")
    for channel in names:
        await bench.publish(channel, 1)
    await bench.store.subscribe("old")
    assert await put(bench, about_channels("p", "*", max_messages=3))
    assert await kept(bench, *names) == [3, 3, None]
    assert not await put(bench, about_channels("p", pattern, max_messages=5))
    wanted = {"new.*": [None, None, 5], "moved": [None, 5, None]}[pattern]
    assert await kept(bench, *names) == wanted
    assert not await put(bench, about_subscriptions("p", ack_wait=1))
    assert await kept(bench, *names) == [None, None, None]
    assert (await settings(bench, "old"))[0] == 1


# --- from when on


async def test_every_later_decision_follows_it(bench: Bench) -> None:
    """Also for what is stored already."""
    q = await queue(bench, 1, 2, 3, ordering="none")
    await put(bench, about_subscriptions("p", max_in_flight=1))
    (one,) = await bench.take(q)
    await put(bench, about_subscriptions("p", max_in_flight=2, max_deliver=1))
    (two,) = await bench.take(q)
    await bench.nack(q, two)
    assert await bench.deaths() == [("2", "max_deliver", 1)]
    await put(bench, about_subscriptions("p", message_ttl=10))
    await bench.store.pass_time(11)
    assert q.id in await bench.port.due(["default"])
    assert await bench.reap(q) == 1
    assert await bench.deaths() == [("2", "max_deliver", 1), ("3", "expired", 0)]
    assert await bench.ack(q, one) == ["acked"]


async def test_the_route_is_the_one_in_force(bench: Bench) -> None:
    """A policy, an own setting, none at all: whatever stands when the message dies."""
    q = await queue(bench, *range(4), ordering="none")
    await bench.bury(q)
    await put(bench, about_subscriptions("p", dead_letter={"channel": "by-policy"}))
    await bench.bury(q)
    await bench.store.change("q", dead_letter={"channel": "own"})
    await bench.bury(q)
    await bench.store.change("q", dead_letter={"channel": None})
    await bench.bury(q)
    routes = [json.loads(letter.published or b"{}").get("channel") for letter in await bench.letters()]
    assert routes == [None, "by-policy", "own", None]


# --- how they come and go


async def test_they_are_found_and_listed_by_name(bench: Bench) -> None:
    made = [about_channels("b", max_messages=1), about_subscriptions("a", ">", -3, max_deliver=2)]
    for policy in made:
        assert await put(bench, policy)
    assert await bench.policies.all("default") == made[::-1]
    assert await bench.policies.get("default", "b") == made[0]
    changed = replace(made[0], priority=7)
    assert not await put(bench, changed)
    assert await bench.policies.get("default", "b") == changed
    await bench.policies.delete("default", "b")
    assert await bench.policies.all("default") == [made[1]]
    for asked in (bench.policies.get("default", "b"), bench.policies.delete("default", "b")):
        assert await code_of(asked) is Code.NOT_FOUND
    elsewhere = bench.policies.put("elsewhere", made[0])
    assert await code_of(elsewhere) is Code.NOT_FOUND


async def test_a_change_may_be_about_the_one_that_was_seen(bench: Bench) -> None:
    policies = bench.policies
    first, second = (about_subscriptions("p", ack_wait=n) for n in (1, 2))
    assert await code_of(policies.put("default", first, if_match=("*",))) is Code.PRECONDITION_FAILED
    made, seen = await policies.put("default", first, if_absent=True)
    assert (made, (await policies.get("default", "p")).tag) == (True, seen)
    assert await code_of(policies.put("default", first, if_absent=True)) is Code.PRECONDITION_FAILED
    made, newer = await policies.put("default", second, if_match=("other", seen))
    assert (made, newer != seen, (await policies.get("default", "p")).tag) == (False, True, newer)
    assert await code_of(policies.put("default", first, if_match=(seen,))) is Code.PRECONDITION_FAILED
    assert await code_of(policies.delete("default", "p", if_match=(seen,))) is Code.PRECONDITION_FAILED
    assert (await policies.put("default", first, if_match=("*",)))[1] == seen, "changed back"
    assert await policies.all("default") == [first]
    await policies.delete("default", "p", if_match=(seen,))
    assert await code_of(policies.delete("default", "p", if_match=(seen,))) is Code.NOT_FOUND


async def test_put_at_once(bench: Bench) -> None:
    made = await asyncio.gather(
        *(put(bench, about_subscriptions("p", "*", n, ack_wait=n + 1)) for n in range(8)),
        *(bench.store.subscribe(f"q{n}") for n in range(8)),
    )
    assert made.count(True) == 1
    (policy,) = await bench.policies.all("default")
    for number in range(8):
        assert (await settings(bench, f"q{number}"))[0] == policy.definition["ack_wait"]
