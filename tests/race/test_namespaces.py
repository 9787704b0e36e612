"""Namespaces are made, emptied and removed while others use the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from db.appender import Appender
from db.namespaces import Namespaces, unknown_namespace
from subscriptions.domain.delivery import AppliesTo, DeadLetterFilter, Definition, Policy
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, NewMessage
from subscriptions.ports import HistoryQuery
from tests.conftest import Database
from tests.patience import in_time
from tests.race.queues import Queues, open_queues
from tests.race.support import stored

ACME = "acme"
TABLES = ["channels", "subscriptions", "policies", "scheduled", "dead_letters", "deleted_names", "looks"]


@pytest.fixture
async def queues(database: Database) -> AsyncIterator[Queues]:
    async with open_queues(database) as opened:
        yield opened


async def put(appender: Appender, channel: str, namespace: str = ACME) -> Any:
    """What a publish of one message is answered."""
    (answer,) = await appender.append([Append(namespace, (NewMessage(channel, b"1"),), None, b"")])
    return answer


async def fill(queues: Queues) -> None:
    """One of each thing that a namespace can hold."""
    await queues.namespaces.put(ACME, None)
    await queues.subscriptions.put(ACME, Definition("q", (">",), "earliest", {}))
    await queues.policies.put(ACME, Policy("p", ">", AppliesTo.CHANNELS, 0, {"message_ttl": 60}))
    stored(await put(queues.appender, "a"))
    stored(await put(queues.appender, "b"))
    group = await queues.subscriptions.get(ACME, "q", stats=False)
    (delivery,) = await queues.take(group, 1)
    await queues.nack(group, delivery, dead_letter=True)
    await queues.channels.delete(ACME, "b")
    await queues.schedule.schedule(ACME, [NewMessage("a", b"2")], [(None, 3600.0)], None, b"")
    await queues.maintenance.remove_unused([ACME], 60, 10)


async def remove(namespaces: Namespaces) -> None:
    gone = False
    while not gone:
        _, gone = await namespaces.remove(ACME)


async def rows(owner: asyncpg.Connection, namespace_id: int) -> dict[str, int]:
    counts = {
        table: await owner.fetchval(
            f"select count(*) from gapless.{table} where namespace_id = $1", namespace_id
        )
        for table in TABLES
    }
    return {table: count for table, count in counts.items() if count}


async def test_a_removed_namespace_leaves_nothing(queues: Queues) -> None:
    await fill(queues)
    stored(await put(queues.appender, "a", "default"))
    acme = await queues.namespaces.id(ACME)
    assert set(await rows(queues.owner, acme)) >= {"channels", "subscriptions", "policies", "scheduled"}
    await remove(queues.namespaces)
    assert await rows(queues.owner, acme) == {}
    assert [n.name for n in await queues.namespaces.all()] == ["default"]
    stored(await put(queues.appender, "a", "default"))


async def test_whoever_still_knows_its_id_is_refused(queues: Queues) -> None:
    await fill(queues)
    other = Queues(queues.config, queues.owner)
    try:
        stored(await put(other.appender, "a"))
        await other.namespaces.id(ACME)
        await remove(queues.namespaces)
        assert (await put(other.appender, "a")).code is Code.NOT_FOUND
        for asked in (
            other.subscriptions.put(ACME, Definition("q", ("a",), "earliest", {})),
            other.policies.put(ACME, Policy("p", ">", AppliesTo.CHANNELS, 0, {})),
            other.schedule.schedule(ACME, [NewMessage("a", b"2")], [(None, 3600.0)], None, b""),
        ):
            with pytest.raises(GaplessError) as refused:
                await asked
            assert refused.value.code is Code.NOT_FOUND
        await queues.namespaces.put(ACME, None)
        assert stored(await put(other.appender, "a")).positions[0].seq == 1
    finally:
        await other.close()


async def test_a_request_for_a_removed_one_fails_no_other(queues: Queues) -> None:
    await fill(queues)
    stored(await put(queues.appender, "a"))
    await remove(queues.namespaces)
    batch = [Append(name, (NewMessage("a", b"1"),), None, b"") for name in (ACME, "default", ACME)]
    first, second, third = await queues.appender.append(batch)
    assert stored(second).positions[0].seq == 1
    assert [str(first), str(third)] == [str(unknown_namespace(ACME))] * 2
    due = await queues.schedule.publish_due([ACME, "default"], 10)
    assert due == (0, ())
    assert await queues.deliveries.due([ACME, "default", "never"]) == []


async def test_a_writer_keeps_it_until_it_is_gone(queues: Queues) -> None:
    """Whoever publishes meanwhile is answered with a message that is there, or with a refusal."""
    await fill(queues)
    stop = asyncio.Event()
    answers: list[Any] = []

    async def write() -> None:
        while not stop.is_set():
            answers.append(await put(queues.appender, f"c{len(answers)}"))

    writing = asyncio.create_task(write())
    other = Namespaces(queues.pool)

    await in_time(remove(other))
    stop.set()
    await writing
    refused = [isinstance(answer, GaplessError) for answer in answers]
    assert refused == sorted(refused)
    assert [n.name for n in await other.all()] == ["default"]


async def test_a_name_that_is_used_again_is_another_log(queues: Queues) -> None:
    """A reader that followed a channel of the removed namespace sees that this one came later."""
    await fill(queues)
    first = stored(await put(queues.appender, "b")).positions[0]
    await remove(queues.namespaces)
    await queues.namespaces.put(ACME, {"streams": 3})
    (there,) = [n for n in await queues.namespaces.all() if n.name == ACME]
    assert (there.limits, there.shared) == ({"streams": 3}, True)
    again = stored(await put(queues.appender, "b")).positions[0]
    assert (again.seq, again.id > first.id) == (1, True)
    place = await queues.reader.place_at(ACME, "b", 0)
    assert place.deletion_id >= first.id
    query = HistoryQuery(ACME, "b", None, None, None, (), (), 10)
    assert [m.id for m in (await queues.history.history(query)).messages] == [again.id]
    assert await queues.dead_letters.page(DeadLetterFilter(ACME), 0, 10) == []


async def test_there_is_a_most_of_them(queues: Queues) -> None:
    await queues.owner.execute(
        "insert into gapless.namespaces (name) select 'n' || x from generate_series(1, 9998) x"
    )
    assert await queues.namespaces.put("last", None)
    with pytest.raises(GaplessError) as refused:
        await queues.namespaces.put("more", None)
    assert refused.value.code is Code.RATE_LIMITED
    assert not await queues.namespaces.put("last", {"streams": 1})
