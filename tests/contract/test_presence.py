"""Every presence: what one process shows of its clients all see, in pages and in numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cache.presence import RedisPresence
from subscriptions.domain.errors import Code, GaplessError
from tests.contract.memory_presence import MemoryPresenceHub
from tests.contract.showing import CHANNEL, Open, Process, client, pair, through
from tests.patience import eventually

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture(params=["memory", "redis"])
def opens(request: pytest.FixtureRequest) -> Open:
    if request.param == "memory":
        return MemoryPresenceHub().open
    return through(request.getfixturevalue("redis_url"))


@pytest.fixture
async def both(opens: Open) -> AsyncIterator[tuple[Process, Process]]:
    async with pair(opens) as processes:
        yield processes


async def test_a_process_sees_its_own_clients_at_once(both: tuple[Process, Process]) -> None:
    one, _ = both
    here = [client() for _ in range(3)]
    one.join(here)
    assert await one.all() == sorted(here)
    one.leave(here[:1])
    assert await one.all() == sorted(here[1:])
    assert (await one.port.stats(CHANNEL)).clients == 2


async def test_what_is_written_is_on_the_pages_of_others(both: tuple[Process, Process]) -> None:
    """At once: there is nothing to wait for."""
    one, two = both
    here = [client() for _ in range(3)]
    one.join(here)
    await one.port.put_all()
    assert await two.all() == sorted(here)
    one.leave(here[:1])
    await one.port.put_all()
    assert await two.all() == sorted(here[1:])


async def test_clients_of_all_processes_are_in_the_pages(both: tuple[Process, Process]) -> None:
    """In the order of their ids, each once, whatever the size of a page."""
    one, two = both
    here, there = [client() for _ in range(30)], [client("u") for _ in range(23)]
    one.join(here)
    two.join(there)
    await eventually(lambda: shows(one, 53))
    await eventually(lambda: shows(two, 53))
    for limit in (1, 7, 52, 53, 54):
        assert await one.all(limit) == await two.all(limit) == sorted(here + there)


async def test_a_page_begins_after_its_cursor_whoever_comes_and_goes(both: tuple[Process, Process]) -> None:
    one, two = both
    crowd = sorted(client() for _ in range(20))
    one.join(crowd[::2])
    two.join(crowd[1::2])
    await eventually(lambda: shows(one, 20))
    page = await one.port.page(CHANNEL, "", 10)
    assert page.clients == crowd[:10]
    one.leave(crowd[8:9])
    rest = await one.port.page(CHANNEL, crowd[8].id, 100)
    assert (rest.clients, rest.has_more) == (crowd[9:], False)


async def test_users_are_counted_once(both: tuple[Process, Process]) -> None:
    one, two = both
    here = [client("u"), client("u"), client("v"), client(), client()]
    there = [client("u"), client("w")]
    one.join(here)
    two.join(there)
    await eventually(lambda: shows(one, 7))
    stats = await one.port.stats(CHANNEL)
    assert (stats.clients, stats.users) == (7, 4)
    one.leave(here[:1])
    assert (await one.port.stats(CHANNEL)).users == 4
    one.leave(here[1:3])
    two.leave(there[:1])
    await eventually(lambda: shows(one, 3))
    assert (await one.port.stats(CHANNEL)).users == 2
    one.leave(here[3:])
    await eventually(lambda: shows(one, 1))
    assert (await one.port.stats(CHANNEL)).users == 1


async def test_channels_do_not_share_clients(both: tuple[Process, Process]) -> None:
    one, _ = both
    first, second = client(), client()
    one.join([first], ("default", "a"))
    one.join([second], ("default", "a.b"))
    one.join([second], ("other", "a"))
    assert await one.all(channel=("default", "a")) == [first]
    assert await one.all(channel=("default", "a.b")) == [second]
    assert await one.all(channel=("other", "a")) == [second]
    assert await one.all(channel=("default", "nobody")) == []
    stats = await one.port.stats(("default", "nobody"))
    assert (stats.clients, stats.users) == (0, 0)


async def test_a_client_is_there_until_its_last_subscription_ends(both: tuple[Process, Process]) -> None:
    one, _ = both
    twice = client()
    one.join([twice, twice])
    one.leave([twice])
    assert await one.all() == [twice]
    one.leave([twice])
    assert await one.all() == []


async def test_more_than_is_gathered_is_there_too(both: tuple[Process, Process]) -> None:
    one, two = both
    crowd = [client() for _ in range(2500)]
    one.join(crowd)
    assert len(await one.all()) == 2500
    one.leave(crowd[:2000])
    assert await one.all() == sorted(crowd[2000:])
    await eventually(lambda: shows(two, 500))


async def test_a_process_that_stops_takes_its_clients_along(both: tuple[Process, Process]) -> None:
    one, two = both
    one.join([client()])
    two.join([client()])
    await eventually(lambda: shows(two, 2))
    await one.stop()
    assert len(await two.all()) == 1
    one.task = asyncio.create_task(one.port.run())
    await one.connected()


async def test_an_answer_says_where_clients_may_be_missing(both: tuple[Process, Process]) -> None:
    """One process has a place for one channel only. What it hides is shown when the place is left."""
    one, two = both
    one.clients._max_channels, one.clients._reserved = 1, 0
    first, hidden = client(), client()
    one.join([first], ("default", "taken"))
    await eventually(lambda: shows(one, 0))
    assert (await two.port.page(CHANNEL, "", 10)).complete
    one.join([hidden])
    assert not (await one.port.page(CHANNEL, "", 10)).complete
    assert not (await one.port.stats(CHANNEL)).complete

    async def is_complete() -> bool:
        page, stats = await two.port.page(CHANNEL, "", 10), await two.port.stats(CHANNEL)
        return page.complete and stats.complete

    async def is_incomplete() -> bool:
        page, stats = await two.port.page(CHANNEL, "", 10), await two.port.stats(CHANNEL)
        return not page.complete and not stats.complete

    await eventually(is_incomplete)
    one.leave([first], ("default", "taken"))
    for channel, each in one.clients.fill(1):
        one.port.changed(channel, each)
    await eventually(is_complete)
    assert await two.all() == [hidden]
    one.join([first], ("default", "taken"))
    await eventually(is_incomplete)
    await one.stop()
    await eventually(is_complete)
    one.task = asyncio.create_task(one.port.run())
    await one.connected()


async def test_the_clients_of_a_process_that_died_can_be_said_to_have_left(opens: Open) -> None:
    """The others learn which these were, and show them no more, long before they expire."""
    elsewhere = ("default", "elsewhere")
    async with pair(opens) as (one, two):
        if isinstance(two.port, RedisPresence):
            two.port._others._lost_after_s = 1.5
        here, there, other = [client() for _ in range(3)], client("u"), client()
        one.join(here)
        one.join([other], elsewhere)
        two.join([there])
        await eventually(lambda: shows(two, 4))
        await one.kill()
        while await two.port.lost() != one.name:
            """A busy machine may take a process for lost that lives."""
        left = await two.port.lost_clients(one.name, [CHANNEL, elsewhere, ("default", "none")], 1000)
        assert {channel: sorted(clients) for channel, clients in left.items() if clients} == {
            CHANNEL: sorted(here),
            elsewhere: [other],
        }
        assert len((await two.port.lost_clients(one.name, [CHANNEL], 2))[CHANNEL]) == 2
        assert await two.all() == [there]
        assert (await two.port.stats(CHANNEL)).clients == 1


async def test_a_process_that_was_taken_for_lost_learns_it(both: tuple[Process, Process]) -> None:
    one, two = both
    assert not one.port.doubted()
    await two.port.doubt(one.name)
    await eventually(lambda: one.port.doubted())
    assert not one.port.doubted()
    assert not two.port.doubted()


async def test_it_cannot_be_asked_before_it_runs(opens: Open) -> None:
    process = Process(opens)
    await process.kill()
    with pytest.raises(GaplessError) as refused:
        await process.port.page(CHANNEL, "", 1)
    assert refused.value.code is Code.UNAVAILABLE


async def shows(process: Process, count: int) -> bool:
    return (await process.port.stats(CHANNEL)).clients == count
