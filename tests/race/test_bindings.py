"""Channels are bound and unbound beside changes and publishers: no change is lost, and no message."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from subscriptions.domain.delivery import Subscription
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, NewMessage
from tests.conftest import Database
from tests.race.queues import Queues, bodies, step
from tests.race.support import IMMEDIATE, blocked, publish, sessions

UNBIND_A = "select gapless.replace_channels(1, 'q', '{a,b}', '{b}', '{b}', null)"


async def bind(queues: Queues, *channels: str) -> Subscription:
    return await queues.subscriptions.bind("default", "q", channels, True)


async def unbind(queues: Queues, *channels: str) -> Subscription:
    return await queues.subscriptions.bind("default", "q", channels, False)


async def reads(queues: Queues) -> tuple[str, ...]:
    return (await queues.subscriptions.get("default", "q", stats=False)).channels


async def test_of_many_at_once_each_counts(queues: Queues) -> None:
    await queues.subscribe("q", "first", "gone.*", "gone.>")
    await asyncio.gather(
        *(bind(queues, f"a.{n}", f"b.{n}.*") for n in range(6)),
        unbind(queues, "gone.*"),
        unbind(queues, "gone.>"),
        *(queues.subscriptions.patch("default", "q", None, {"ack_wait": 7 + n}) for n in range(3)),
    )
    expected = {"first"} | {name for n in range(6) for name in (f"a.{n}", f"b.{n}.*")}
    assert (len(await reads(queues)), set(await reads(queues))) == (13, expected)
    names = ["first", "a.0", "b.0.x", "gone.x", "gone.x.y", "b.5.x", "a.9", "b.5.x.y"]
    await queues.append(*[NewMessage(name, b'"%b"' % name.encode()) for name in names])
    subscription = await queues.subscriptions.get("default", "q", stats=False)
    taken = bodies(await queues.take_all(subscription))
    assert taken == ['"first"', '"a.0"', '"b.0.x"', '"b.5.x"']


@pytest.mark.parametrize("commits", [True, False])
async def test_two_never_take_the_last_one_away_together(
    database: Database, queues: Queues, owner: asyncpg.Connection, commits: bool
) -> None:
    await queues.subscribe("q", "a", "b")
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, UNBIND_A)
        second = await blocked(owner, unbind(queues, "b"))
        await first.end(commits=commits)
        if commits:
            with pytest.raises(GaplessError) as refused:
                await second
            assert refused.value.code is Code.INVALID_REQUEST
        else:
            await second
    assert await reads(queues) == (("b",) if commits else ("a",))


async def test_what_is_so_already_changes_nothing(queues: Queues) -> None:
    await queues.subscribe("q", "a", "b.*")
    assert (await bind(queues, "b.*", "a")).channels == ("a", "b.*")
    assert (await unbind(queues, "b", "c")).channels == ("a", "b.*")
    for channels in (("a", "b.*"), ("c", "b.*", "a")):
        with pytest.raises(GaplessError):
            await unbind(queues, *channels)
    with pytest.raises(GaplessError):
        await bind(queues, *(f"c.{n}" for n in range(127)))
    with pytest.raises(GaplessError):
        await bind(queues, "*." * 126 + "*", "x." * 126 + "*", "y." * 126 + "*", "z." * 126 + "*", "w.*.*.*")
    assert await reads(queues) == ("a", "b.*")


async def test_a_smaller_id_in_flight_in_a_channel_that_is_bound_is_delivered(
    database: Database, queues: Queues
) -> None:
    """The reader of one channel stands above the settled id when the other channel comes."""
    subscription = await queues.subscribe("q", "a")
    await queues.append(NewMessage("b", b"0"))
    async with sessions(database.owner_url, 1) as (session,):
        transaction = session.transaction()
        await transaction.start()
        await publish(session, "b", "1")
        await session.execute(IMMEDIATE)
        await queues.publish("a", 2)
        assert bodies(await queues.take_all(subscription)) == ["2"]
        await bind(queues, "b")
        await transaction.commit()
    await queues.publish("b", 3)
    assert bodies(await queues.take_all(subscription)) == ["1", "3"]


async def test_what_was_handed_out_stays_when_its_channel_goes(queues: Queues) -> None:
    subscription = await queues.subscribe("q", "a", "b")
    await queues.appender.append([Append("default", (NewMessage("a", b"1"), NewMessage("b", b"2")))])
    one, two = await queues.take(subscription)
    await unbind(queues, "a")
    assert await queues.nack(subscription, one, delay=0) == ["nacked"]
    assert await queues.ack(subscription, two) == ["acked"]
    assert bodies(await queues.take_all(subscription)) == ["1"]
    await queues.publish("a", 3)
    await queues.publish("b", 4)
    assert bodies(await queues.take_all(subscription)) == ["4"]


async def test_nothing_is_bound_to_a_subscription_that_goes(
    database: Database, queues: Queues, owner: asyncpg.Connection
) -> None:
    await queues.subscribe("q", "a")
    async with sessions(database.service_url, 1) as (session,):
        first = await step(session, "select gapless.remove_subscription(1, 'q', false, false)")
        second = await blocked(owner, bind(queues, "b"))
        await first.end()
        with pytest.raises(GaplessError) as refused:
            await second
    assert refused.value.code is Code.SUBSCRIPTION_NOT_FOUND
