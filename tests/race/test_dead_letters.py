"""What a subscription gives up on: an entry and a copy, in the transaction that settles it. What they tell:
tests/contract/test_dead_letters.py."""

from __future__ import annotations

import asyncpg
import pytest

from subscriptions.domain.model import NewMessage
from tests.conftest import Database
from tests.race.journeys import copies
from tests.race.queues import NACK, Queues, bodies, columns, step
from tests.race.support import blocked, check_log, sessions

HOPS = 1000
DLQ = {"channel": "dead.{subscription}.{channel}"}


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


@pytest.mark.parametrize("commits", [True, False])
async def test_an_entry_that_is_being_replayed_is_not_removed_by_its_age(
    database: Database, queues: Queues, commits: bool
) -> None:
    subscription = await queues.subscribe("q", ordering="none", dead_letter={"channel": "dead", "keep": 60})
    await queues.publish("q", 1, 2)
    replayed, _ = await queues.bury(subscription, 2)
    await queues.pass_time(61)
    async with sessions(database.service_url, 1) as (session,):
        replaying = await step(
            session, "select r.status from gapless.namespaces n, gapless.replay(n.id, $1) r", replayed
        )
        assert await queues.maintenance.purge_rows(1000) == 1
        await replaying.end(commits=commits)
    assert await queues.maintenance.purge_rows(1000) == (0 if commits else 1)
    assert await queues.letters() == []
    assert bodies(await queues.take(subscription)) == (["1"] if commits else [])
    assert await queues.owner.fetchval("select count(*) from gapless.kept") == int(commits)
