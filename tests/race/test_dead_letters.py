"""What a subscription gives up on: an entry, a copy and a journey, in the transaction that settles it."""

from __future__ import annotations

import json

import asyncpg
import pytest

from subscriptions.domain.model import NewMessage
from tests.conftest import Database
from tests.race.journeys import copies, journey, told
from tests.race.laws import check_queues
from tests.race.queues import NACK, Queues, bodies, columns, step
from tests.race.support import blocked, check_log, rows, sessions

HOPS = 1000
DLQ = {"channel": "dead.{subscription}.{channel}"}


async def test_the_copy_says_what_the_message_said(queues: Queues) -> None:
    subscription = await queues.subscribe("q", ordering="none", dead_letter=DLQ)
    sent = [
        NewMessage("q", b'{"b":1,"a":[1.0,2e3]}', type="t", key="k", headers=b'{"x":"1","a":"2"}', ttl=60),
        NewMessage("q", None, bytes(range(256)), sender="s"),
        NewMessage("q", b'"%s"' % (b"x" * 1_048_000)),
    ]
    await queues.append(*sent)
    dead = await queues.bury(subscription, 3, reason="no good")
    letters = await queues.letters()
    assert [letter.id for letter in letters] == dead
    stored = await copies(queues, "dead.q.q")
    for new, letter, copy in zip(sent, letters, stored, strict=True):
        message = letter.message
        assert (message.channel, message.data, message.binary) == ("q", new.data, new.binary)
        assert (message.type, message.key, message.sender) == (new.type, new.key, new.sender)
        assert (letter.reason, letter.attempts, letter.last_error) == ("rejected", 1, "no good")
        assert told(letter) == [("q", "q", "rejected", 1)]
        assert json.loads(letter.published or b"") == {
            "channel": "dead.q.q",
            "id": copy["id"],
            "seq": copy["seq"],
        }
        assert copy["expires_at"] is None
        assert (copy["data"] and copy["data"].encode(), copy["binary"]) == (new.data, new.binary)
        assert (copy["type"], copy["key"], copy["sender"]) == (new.type, new.key, new.sender)
        headers = json.loads(copy["headers"])
        assert json.loads(headers.pop("gapless-journey")) == journey(letter)
        assert headers == json.loads(new.headers or b"{}")


@pytest.mark.parametrize("commits", [True, False])
async def test_the_entry_and_its_copy_come_together(
    database: Database, queues: Queues, owner: asyncpg.Connection, commits: bool
) -> None:
    """There is no moment at which a message is in neither place or in both."""
    subscription = await queues.subscribe("q", dead_letter={"channel": "dead"})
    await queues.publish("q", 1)
    (delivery,) = await queues.take(subscription)
    _, messages, leases = columns(subscription, delivery)
    async with sessions(database.service_url, 1) as (session,):
        dying = await step(session, NACK, subscription.id, messages, leases, True)
        assert not await queues.letters()
        assert not await copies(queues, "dead")
        assert (await queues.stats("q")).in_flight == 1
        waiting = await blocked(owner, queues.publish("dead", 2))
        await dying.end(commits=commits)
        await waiting
    assert (len(await queues.letters()), (await queues.stats("q")).in_flight) == (
        (1, 0) if commits else (0, 1)
    )
    assert [copy["data"] for copy in await copies(queues, "dead")] == (["1", "2"] if commits else ["2"])
    await check_log(owner)


@pytest.mark.parametrize(
    "template", ["dead", "d.{channel}", "d.{subscription}.{channel}.{channel}", "{channel}"]
)
async def test_templates(queues: Queues, template: str) -> None:
    subscription = await queues.subscribe("s", "a.*", dead_letter={"channel": template})
    await queues.publish("a.b", 1)
    await queues.bury(subscription)
    target = template.replace("{channel}", "a.b").replace("{subscription}", "s")
    assert bodies(await queues.take(subscription)) == (["1"] if target == "a.b" else [])
    assert len(await copies(queues, target)) == (2 if target == "a.b" else 1)


@pytest.mark.parametrize(
    "template", ["no spaces", "a..b", "{other}", "{channel}" * 300, "d.{channel}.", "é", "*"]
)
async def test_a_name_that_cannot_be_is_told(queues: Queues, template: str) -> None:
    subscription = await queues.subscribe("q", dead_letter={"channel": template})
    await queues.publish("q", 1, 2, key="k")
    await queues.bury(subscription)
    (letter,) = await queues.letters()
    assert (letter.reason, letter.published) == ("rejected", None)
    assert (letter.unroutable or "").startswith("no channel can be named ")
    assert len(letter.unroutable or "") < 400
    assert bodies(await queues.take(subscription)) == ["2"]


async def test_the_route_is_the_one_in_force(queues: Queues) -> None:
    """A policy, an own setting, none at all: whatever stands when the message dies."""
    subscription = await queues.subscribe("q", ordering="none")
    await queues.publish("q", *range(4))
    await queues.bury(subscription)
    await queues.policy("p", "*", dead_letter={"channel": "by-policy"})
    await queues.bury(subscription)
    await queues.subscriptions.patch("default", "q", None, {"dead_letter": {"channel": "own"}})
    await queues.bury(subscription)
    await queues.subscriptions.patch("default", "q", None, {"dead_letter": {"channel": None}})
    await queues.bury(subscription)
    routes = [json.loads(letter.published or b"{}").get("channel") for letter in await queues.letters()]
    assert routes == [None, "by-policy", "own", None]


async def test_a_dead_letter_outlives_its_message(queues: Queues, owner: asyncpg.Connection) -> None:
    subscription = await queues.subscribe("q", ordering="none")
    await queues.publish("q", 1, 2, key="k")
    dead = await queues.bury(subscription, 2)
    assert await owner.fetchval("select gapless.delete_channel(1, 'q')")
    await owner.execute("select gapless.purge_rows(100)")
    assert [letter.message.data for letter in await queues.letters()] == [b"1", b"2"]
    for letter in dead:
        assert await queues.dead_letters.replay("default", letter)
    taken = await queues.take(subscription)
    assert [(d.message.channel, d.message.key, d.message.seq) for d in taken] == [
        ("q", "k", 1),
        ("q", "k", 2),
    ]
    await queues.reject(subscription, taken[0])
    assert len(await queues.letters()) == 1
    await queues.ack(subscription, taken[1])
    await check_queues(owner)
    assert len(await rows(owner)) == 0


async def test_a_claim_that_finds_more_dead_than_one_transaction_holds(queues: Queues) -> None:
    """They are buried a few at a time, and whoever asked gets what comes after them."""
    subscription = await queues.subscribe("q", ordering="none", ack_wait=1000)
    large = NewMessage("q", b'"%s"' % (b"x" * 1_000_000))
    leased = 0
    while leased < 70:
        await queues.append(*[large] * 7)
        taken = await queues.take(subscription)
        await queues.nack(subscription, *taken, delay=1000)
        leased += len(taken)
    await queues.publish("q", 7)
    await queues.subscriptions.patch("default", "q", None, {"max_deliver": 1})
    await queues.pass_time(2000)
    claimed = await queues.claim(subscription)
    while not claimed.deliveries:
        assert claimed.more, "it stopped at a bound of work"
        claimed = await queues.claim(subscription)
    assert bodies(claimed.deliveries) == ["7"]
    assert (await queues.stats("q")).dead_letters == leased
