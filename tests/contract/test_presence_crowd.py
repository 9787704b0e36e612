"""Many questions about presence at once, to a real Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cache import link as link_module
from cache import presence as presence_module
from cache.presence import RedisPresence
from cache.presence_members import Command
from subscriptions.domain.errors import Code, GaplessError
from tests.contract.showing import CHANNEL, Process, client, pair, through
from tests.patience import eventually

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
async def both(redis_url: str) -> AsyncIterator[tuple[Process, Process]]:
    async with pair(through(redis_url)) as processes:
        yield processes


async def test_a_wave_of_questions_is_answered(both: tuple[Process, Process]) -> None:
    """Three hundred at once, each about another channel."""
    one, _ = both
    channels = [("default", f"c{number}") for number in range(300)]
    crowd = [client() for _ in channels]
    for channel, each in zip(channels, crowd, strict=True):
        one.join([each], channel)
    pages = await asyncio.gather(*(one.port.page(channel, "", 10) for channel in channels))
    assert [page.clients for page in pages] == [[each] for each in crowd]


async def test_questions_go_together(both: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred about different channels, each in two steps. One after another they would take 60 s if Redis
    answered in 0.3 s."""
    one, _ = both
    channels = [("default", f"c{number}") for number in range(100)]
    crowd = [client("u") for _ in channels]
    for channel, each in zip(channels, crowd, strict=True):
        one.join([each], channel)
    ask, rounds = link_module.Link.ask, []

    async def counted(link: link_module.Link, commands: list[Command]) -> list[Any]:
        if commands[0][0] in ("ZRANGE", "ZRANGEBYLEX"):
            rounds.append(len(commands))
        return await ask(link, commands)

    monkeypatch.setattr(link_module.Link, "ask", counted)
    pages = await asyncio.gather(*(one.port.page(channel, "", 10) for channel in channels))
    assert [page.clients for page in pages] == [[each] for each in crowd]
    assert sum(rounds) == 3 * len(channels)
    assert len(rounds) <= 20


async def test_a_crowd_is_not_taken_for_a_redis_that_does_not_answer(
    both: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis answers late. Questions that wait behind the first end at their deadline, and one too many is
    refused at once. When it has its turn, Redis has time of its own."""
    one, _ = both
    assert isinstance(one.port, RedisPresence)
    places = one.port._places = asyncio.Semaphore(1)
    ask, asked, answer = link_module.Link.ask, asyncio.Event(), asyncio.Event()

    async def late(link: link_module.Link, commands: list[Command]) -> list[Any]:
        if commands[0][0] == "ZRANGE":
            asked.set()
            await answer.wait()
        return await ask(link, commands)

    monkeypatch.setattr(link_module.Link, "ask", late)
    first = asyncio.create_task(one.port.page(CHANNEL, "", 1))
    await asked.wait()
    monkeypatch.setattr(presence_module, "MAX_READING", 4)
    monkeypatch.setattr(presence_module, "DEADLINE_S", 0.2)
    refused = await asyncio.gather(*(one.port.stats(CHANNEL) for _ in range(4)), return_exceptions=True)
    monkeypatch.setattr(presence_module, "DEADLINE_S", 1e6)
    turned = asyncio.create_task(one.port.page(CHANNEL, "", 1))
    await eventually(lambda: len(places._waiters or ()) == 1)
    monkeypatch.setattr(presence_module, "DEADLINE_S", 0.2)
    answer.set()
    answer.clear()
    assert (await first).clients == []
    with pytest.raises(GaplessError, match="Redis, which does not answer"):
        await turned
    for error in refused:
        assert isinstance(error, GaplessError)
        assert error.code is Code.UNAVAILABLE
        assert error.detail == "too many questions about presence are asked at once"
