"""What bounds a look, and what it sees of replays; what each state tells: tests/contract/test_look.py."""

from __future__ import annotations

import asyncpg
import pytest

from subscriptions.domain.delivery import Outstanding, State
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.model import NewMessage
from tests.conftest import Database
from tests.race.queues import CLAIM, Queues, step
from tests.race.support import sessions

LOOKAHEAD = 10_000


async def pages(
    queues: Queues, state: State | None = None, limit: int = 1000
) -> tuple[list[Outstanding], bool, int]:
    """All pages: what they hold, whether they are all, and how many there were."""
    found: list[Outstanding] = []
    after, more, count = 0, True, 0
    while more:
        page = await queues.deliveries.look("default", "q", state, after, limit)
        assert page.cursor > after or not page.has_more
        found += page.messages
        after, more, count = page.cursor, page.has_more, count + 1
    return found, page.complete, count


async def many(queues: Queues, count: int, keys: int) -> None:
    """So many messages, of so many keys in turn."""
    for begin in range(0, count, 5000):
        await queues.append(
            *[NewMessage("q", b"1", key=str(n % keys)) for n in range(begin, min(begin + 5000, count))]
        )


async def test_without_an_order_all_of_a_long_backlog_is_shown(queues: Queues) -> None:
    await queues.subscribe("q", ordering="none")
    await many(queues, 12_000, 2)
    found, complete, count = await pages(queues)
    assert (len(found), complete, count) == (12_000, True, 12)
    assert [each.message.id for each in found] == sorted(each.message.id for each in found)


async def test_with_an_order_it_is_said_where_one_looks_no_further(queues: Queues) -> None:
    """What a message waits for would have to be looked for in all before it."""
    await queues.subscribe("q")
    await many(queues, LOOKAHEAD + 3000, 2)
    ready, complete, _ = await pages(queues, State.READY)
    assert (len(ready), complete) == (2, False)
    waiting, complete, _ = await pages(queues, State.WAITING)
    assert LOOKAHEAD - 2 <= len(waiting) < LOOKAHEAD + 3000
    assert not complete
    assert {each.waits_for for each in waiting} == {each.message.id for each in ready}


async def test_what_no_filter_lets_through_ends_a_page_and_not_the_list(queues: Queues) -> None:
    """Work is bounded for a page: it may be empty, and the next one goes on."""
    await queues.subscribe("q", ordering="none", filter={"keys": ["rare"]})
    await many(queues, 50_000, 7)
    await queues.publish("q", 1, key="rare")
    found, complete, count = await pages(queues, limit=1)
    assert ([each.message.key for each in found], complete) == (["rare"], True)
    assert count > 1


async def test_a_page_is_bounded_in_bytes(queues: Queues) -> None:
    await queues.subscribe("q", ordering="none")
    large = NewMessage("q", b'"%s"' % (b"x" * 1_000_000))
    for _ in range(2):
        await queues.append(*[large] * 6)
    page = await queues.deliveries.look("default", "q", None, 0, 1000)
    assert 4 <= len(page.messages) <= 6
    assert page.has_more
    found, _, count = await pages(queues)
    assert (len(found), count) == (12, 3)


async def test_what_was_replayed_is_seen_where_it_is(queues: Queues, owner: asyncpg.Connection) -> None:
    """Above the frontier too, and though retention took the message: it travels as its copy."""
    subscription = await queues.subscribe("q", ordering="none")
    await queues.publish("q", 1, 2, 3)
    await queues.bury(subscription, 3)
    await queues.subscriptions.seek("default", "q", "0")
    await owner.execute("delete from gapless.messages where id = 2")
    for letter in (2, 3):
        await queues.dead_letters.replay("default", letter)
    found, _, _ = await pages(queues, limit=1)
    assert [(each.message.data, each.state, each.last_error) for each in found] == [
        (b"1", "ready", None),
        (b"2", "ready", "nacked"),
        (b"3", "ready", "nacked"),
    ]


async def test_it_waits_for_nobody(database: Database, queues: Queues) -> None:
    """It sees what was committed, while somebody decides."""
    subscription = await queues.subscribe("q", ordering="none")
    await queues.publish("q", 1, 2)
    async with sessions(database.service_url, 1) as (session,):
        claiming = await step(session, CLAIM, subscription.id, await queues.settled(), 1)
        assert [each.state for each in (await pages(queues))[0]] == ["ready", "ready"]
        await claiming.end()
    assert [each.state for each in (await pages(queues))[0]] == ["leased", "ready"]


async def test_nothing_is_said_where_progress_is_lost(queues: Queues, owner: asyncpg.Connection) -> None:
    await queues.subscribe("q")
    await owner.execute("delete from gapless.progress where subscription_id > 0")
    with pytest.raises(GaplessError, match="no progress"):
        await queues.deliveries.look("default", "q", None, 0, 10)
    await queues.subscriptions.seek("default", "q", "earliest")
