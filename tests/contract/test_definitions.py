"""All definitions as one document: what it holds, what an import changes, over every adapter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from subscriptions.domain.delivery import (
    AppliesTo,
    Change,
    ChannelDefinition,
    Definition,
    Definitions,
    Policy,
)
from subscriptions.domain.errors import Code
from subscriptions.domain.model import Retention
from tests.contract.bench import Bench, code_of, data
from tests.contract.test_deliveries import bench

__all__ = ["bench"]

POLICY = Policy("p", "*", AppliesTo.SUBSCRIPTIONS, 3, {"ack_wait": 9})
DOCUMENT = Definitions(
    (ChannelDefinition("c", {"max_messages": 5}), ChannelDefinition("d", {"message_ttl": 7})),
    (
        Definition("q", ("c", "x.*"), "earliest", {"max_deliver": 2}),
        Definition("r", ("d",), "latest", {}),
    ),
    (POLICY,),
    frozenset({"r"}),
)
PUSH = {"url": "http://example.com", "secret": "whsec_a"}


async def apply(bench: Bench, wanted: Definitions, *, dry_run: bool = False) -> tuple[list[str], int]:
    """What changed, in short, and how many did not."""
    changes, same = await bench.policies.apply("default", wanted, dry_run=dry_run)
    told = [f"{'' if c.before is None else '~'}{c.kind}:{c.name}" for c in changes]
    return told, same


async def test_it_holds_what_was_defined(bench: Bench) -> None:
    """Own settings, of channels only those that have some, all in order of names."""
    await bench.publish("bare", 1)
    await bench.channels.put("default", "d", Retention(), 7)
    await bench.channels.put("default", "c", Retention(None, 5), None)
    await bench.store.subscribe("r", "d", start="latest")
    await bench.store.pause("r", True)
    await bench.store.subscribe("q", "c", "x.*", max_deliver=2)
    await bench.policies.put("default", POLICY)
    assert await bench.policies.definitions("default") == DOCUMENT
    assert await code_of(bench.policies.definitions("elsewhere")) is Code.NOT_FOUND


async def test_an_import_makes_everything_once(bench: Bench) -> None:
    all_of_it = ["channel:c", "channel:d", "policy:p", "subscription:q", "subscription:r"]
    assert await apply(bench, DOCUMENT, dry_run=True) == (all_of_it, 0)
    assert await bench.policies.definitions("default") == Definitions()
    assert await apply(bench, DOCUMENT) == (all_of_it, 0)
    assert await bench.policies.definitions("default") == DOCUMENT
    assert await apply(bench, DOCUMENT) == ([], 5)
    (channel,) = await bench.channels.page("default", "^c$", "", 10)
    assert channel.retention.max_messages == 5
    q = await bench.lookup.get("default", "q", stats=False)
    assert (q.settings["ack_wait"], q.settings["max_deliver"], q.paused) == (9, 2, False)
    r = await bench.lookup.get("default", "r", stats=False)
    assert (r.channels, r.paused) == (("d",), True)
    await bench.publish("c", 1)
    assert data(await bench.take(q)) == ["1"]


async def test_what_differs_is_changed_and_what_is_not_named_stays(bench: Bench) -> None:
    await apply(bench, DOCUMENT)
    seen = await bench.lookup.get("default", "q", stats=False)
    wanted = Definitions(
        (ChannelDefinition("c", {"max_age": 60}),),
        (
            Definition("q", ("c",), "latest", {"max_backlog": 7}),
            Definition("r", ("d",), "earliest", {}),
        ),
        (replace(POLICY, definition={"ack_wait": 4}),),
    )
    changes, same = await bench.policies.apply("default", wanted, dry_run=False)
    policy = {"pattern": "*", "applies_to": "subscriptions", "priority": 3}
    assert changes == [
        Change("channel", "c", {"max_messages": 5}, {"max_age": 60}),
        Change(
            "policy",
            "p",
            {**policy, "definition": {"ack_wait": 9}},
            {**policy, "definition": {"ack_wait": 4}},
        ),
        Change(
            "subscription",
            "q",
            {"channels": ["c", "x.*"], "start": "earliest", "max_deliver": 2},
            {"channels": ["c"], "start": "earliest", "max_backlog": 7},
        ),
        Change(
            "subscription",
            "r",
            {"channels": ["d"], "start": "latest", "paused": True},
            {"channels": ["d"], "start": "latest"},
        ),
    ]
    assert same == 0
    there = await bench.policies.definitions("default")
    assert [(c.name, c.settings) for c in there.channels] == [
        ("c", {"max_age": 60}),
        ("d", {"message_ttl": 7}),
    ]
    assert (there.subscriptions[0].start, there.paused) == ("earliest", frozenset())
    q = await bench.lookup.get("default", "q", stats=False)
    assert (q.id, q.channels, q.settings["max_deliver"], q.settings["ack_wait"]) == (seen.id, ("c",), 5, 4)


async def test_the_order_of_channels_types_and_keys_is_no_difference(bench: Bench) -> None:
    def documents(types: list[str], *channels: str) -> Definitions:
        lists = {"types": types, "keys": types, "changes": "none"}
        policy = replace(POLICY, definition={"filter": lists, "backoff": [1, 2]})
        return Definitions((), (Definition("q", channels, "earliest", {"filter": lists}),), (policy,))

    await apply(bench, documents(["x", "y"], "b.*", "a"))
    assert await apply(bench, documents(["y", "x"], "a", "b.*")) == ([], 2)
    assert await bench.policies.definitions("default") == documents(["x", "y"], "b.*", "a")
    assert await apply(bench, documents(["y", "z"], "a", "b.*")) == (["~policy:p", "~subscription:q"], 0)
    other_delays = replace(POLICY, definition={"backoff": [2, 1]})
    await apply(bench, Definitions(policies=(replace(POLICY, definition={"backoff": [1, 2]}),)))
    assert await apply(bench, Definitions(policies=(other_delays,))) == (["~policy:p"], 0)


async def test_a_channel_without_settings_is_made_once(bench: Bench) -> None:
    bare = Definitions((ChannelDefinition("bare", {}),))
    assert await apply(bench, bare) == (["channel:bare"], 0)
    assert (await bench.channels.get("default", "bare")).last_seq == 0
    assert await apply(bench, bare) == ([], 1)
    given = Definitions((ChannelDefinition("bare", {"max_messages": 5}),))
    assert await apply(bench, given) == (["~channel:bare"], 0)
    assert await apply(bench, bare) == (["~channel:bare"], 0)
    assert await apply(bench, bare) == ([], 1)
    assert (await bench.channels.get("default", "bare")).retention == Retention()


async def test_a_push_without_a_secret_keeps_the_one_that_is_there(bench: Bench) -> None:
    q = Definition("q", ("q",), "latest", {"push": PUSH})
    await apply(bench, Definitions(subscriptions=(q,)))
    silent = replace(q, settings={"push": {"url": PUSH["url"]}})
    assert await apply(bench, Definitions(subscriptions=(silent,))) == ([], 1)
    moved = replace(q, settings={"push": {"url": "http://example.org"}})
    assert await apply(bench, Definitions(subscriptions=(moved,))) == (["~subscription:q"], 0)
    (there,) = (await bench.policies.definitions("default")).subscriptions
    assert there.settings["push"] == {"url": "http://example.org", "secret": PUSH["secret"]}


MISTAKES = {
    "a start in the future": Definition("wrong", ("q",), "999999", {}),
    "a push without a secret": Definition("wrong", ("q",), "latest", {"push": {"url": PUSH["url"]}}),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("dry_run", [True, False])
async def test_a_document_with_a_mistake_changes_nothing(
    bench: Bench, mistake: str, *, dry_run: bool
) -> None:
    wanted = replace(DOCUMENT, subscriptions=(*DOCUMENT.subscriptions, MISTAKES[mistake]))
    applying = bench.policies.apply("default", wanted, dry_run=dry_run)
    assert await code_of(applying) is Code.INVALID_REQUEST
    assert await bench.policies.definitions("default") == Definitions()
    assert await code_of(bench.channels.get("default", "c")) is Code.CHANNEL_NOT_FOUND
    assert await apply(bench, DOCUMENT) == (
        ["channel:c", "channel:d", "policy:p", "subscription:q", "subscription:r"],
        0,
    )


async def test_an_import_may_be_about_the_definitions_that_were_seen(bench: Bench) -> None:
    """Messages do not change the tag, and each change of a definition does."""
    empty = (await bench.policies.definitions("default")).tag
    await bench.publish("c", 1)
    q = await bench.store.subscribe("q", "c")
    assert (await bench.policies.definitions("default")).tag != empty
    tags = [empty, (await bench.policies.definitions("default")).tag]
    await bench.ack(q, *await bench.take(q))
    assert (await bench.policies.definitions("default")).tag == tags[1]
    await bench.store.pause("q", True)
    tags.append((await bench.policies.definitions("default")).tag)
    await bench.channels.put("default", "c", Retention(60), None)
    tags.append((await bench.policies.definitions("default")).tag)
    await bench.policies.put("default", POLICY)
    tags.append((await bench.policies.definitions("default")).tag)
    assert len(set(tags)) == 5
    for seen in tags[:-1]:
        applying = bench.policies.apply("default", DOCUMENT, dry_run=False, if_match=(seen,))
        assert await code_of(applying) is Code.PRECONDITION_FAILED
    await bench.policies.apply("default", DOCUMENT, dry_run=True, if_match=("other", tags[-1]))
    await bench.policies.apply("default", DOCUMENT, dry_run=False, if_match=(tags[-1],))
    await bench.policies.apply("default", DOCUMENT, dry_run=False, if_match=("*",))
