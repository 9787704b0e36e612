"""Readers and queues with the messages that change others, without them, or with nothing else."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import httpx
import pytest
from gapless import AsyncClient, Filter, InvalidRequest, Message
from gapless._calls.subscription import Changes

from tests.integration.conftest import Hosts

SENT = 6
FILTERED: tuple[Changes, ...] = ("none", "only")
numbers = itertools.count()
EXPECTED: dict[Changes, list[int]] = {"all": [0, 1, 2, 3, 4, 5], "none": [0, 2, 4], "only": [1, 3, 5]}
"""Which of the messages that `talk` sends are read."""


async def talk(client: AsyncClient, channel: str) -> list[int]:
    """The ids of an original, its update, a reply and an annotation, and of another one and its deletion."""
    first = (await client.publish(channel, "one")).id
    update = (await client.publish(channel, "ONE", target=first, action="update")).id
    reply = (await client.publish(channel, "re", target=first, action="reply")).id
    like = (
        await client.publish(
            channel, "x", target=first, action="annotate", annotation="like", mode="distinct"
        )
    ).id
    second = (await client.publish(channel, "two")).id
    deletion = (await client.publish(channel, "x", target=second, action="delete")).id
    return [first, update, reply, like, second, deletion]


@pytest.fixture
async def clients(both_hosts: Hosts) -> AsyncIterator[tuple[AsyncClient, AsyncClient]]:
    """Of two processes: what the first one publishes reaches the other by hints."""
    async with AsyncClient(both_hosts.urls[0]) as writer, AsyncClient(both_hosts.urls[1]) as reader:
        yield writer, reader


@pytest.fixture
def base() -> str:
    """What all names of a test begin with."""
    return f"filters{next(numbers)}"


async def take(stream: AsyncIterator[Any], count: int) -> list[int]:
    """The ids of the next messages of a stream."""
    found: list[int] = []
    while len(found) < count:
        message = await anext(stream)
        assert isinstance(message, Message)
        found.append(message.id)
    return found


@pytest.mark.parametrize(
    "channels",
    [
        pytest.param(["{}.room"], id="one"),
        pytest.param(["{}.room", "{}.other"], id="two", marks=pytest.mark.drill),
        pytest.param(["{}.*"], id="pattern"),
    ],
)
@pytest.mark.parametrize("face", ["sse", "websocket"])
async def test_a_reader_is_told_of_the_changes_that_it_asks_for(
    clients: tuple[AsyncClient, AsyncClient], base: str, channels: list[str], face: str
) -> None:
    """From the log, and live."""
    writer, reader = clients
    room, followed = f"{base}.room", [each.format(base) for each in channels]
    before = await talk(writer, room)

    async def read(follow: Callable[..., Any], changes: Changes) -> None:
        expected = EXPECTED[changes]
        async with aclosing(follow(*followed, start="earliest", changes=changes)) as stream:
            assert await take(stream, len(expected)) == [before[n] for n in expected]
            waiting.append(changes)
            if len(waiting) == len(EXPECTED):
                after.set_result(await talk(writer, room))
            assert await take(stream, len(expected)) == [(await after)[n] for n in expected]

    waiting: list[str] = []
    after: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
    if face == "sse":
        await asyncio.gather(*[read(reader.subscribe, changes) for changes in EXPECTED])
    else:
        async with reader.connect() as connection:
            await asyncio.gather(*[read(connection.subscribe, changes) for changes in EXPECTED])


async def test_a_queue_takes_the_changes_that_its_filter_lets_through(
    clients: tuple[AsyncClient, AsyncClient], base: str
) -> None:
    """Also after another definition, and in its counts."""
    writer, reader = clients
    room, both = f"{base}.room", f"{base}.both"
    names = {changes: f"{base}.{changes}" for changes in FILTERED}
    for changes in FILTERED:
        made = await writer.subscriptions.create(
            names[changes], [room], start=0, ordering="none", filter=Filter(changes=changes)
        )
        assert made.filter == Filter(changes=changes)
    sent = await talk(writer, room)
    for changes in FILTERED:
        expected = [sent[n] for n in EXPECTED[changes]]
        assert (await reader.subscriptions.length(names[changes])).lag == len(expected)
        deliveries = await reader.pull(names[changes], SENT, wait=0)
        assert [delivery.message.id for delivery in deliveries] == expected
        assert await reader.pull(names[changes], SENT, wait=0) == []
    made = await writer.subscriptions.create(both, [room], start=0, filter=Filter(types=["message"]))
    assert made.filter == Filter(types=("message",))
    await writer.subscriptions.update(both, filter=Filter(types=["message"], changes="only"), ordering="none")
    deliveries = await reader.pull(both, SENT, wait=0)
    assert [delivery.message.id for delivery in deliveries] == [sent[n] for n in EXPECTED["only"]]


async def test_history_with_and_without_changes(clients: tuple[AsyncClient, AsyncClient], base: str) -> None:
    writer, reader = clients
    room = f"{base}.room"
    sent = await talk(writer, room)
    for changes, expected in EXPECTED.items():
        for order in ("asc", "desc"):
            found = [m.id async for m in reader.iter_history(room, changes=changes, order=order)]
            assert (found if order == "asc" else found[::-1]) == [sent[n] for n in expected]
            page = await reader.history(room, changes=changes, order=order, page_size=SENT).__anext__()
            assert {m.id for m in page.messages} == {sent[n] for n in expected}


async def test_what_is_refused(both_hosts: Hosts) -> None:
    url = both_hosts.urls[0]
    async with AsyncClient(url) as client:
        with pytest.raises(InvalidRequest, match="changes"):
            await client.subscriptions.create("q", ["room"], filter=Filter(changes="some"))  # type: ignore[arg-type]
    for path in ("subscribe?channel=room&changes=some", "channels/room/messages?view=latest&changes=none"):
        answer = httpx.get(f"{url}/v1/{path}")
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
        assert "changes" in answer.json()["detail"]
