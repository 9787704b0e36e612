"""Who may post, and who has to wait."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from app.faces.webhooks.limiter import (
    FIRST_PLACES,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_A_HOST,
    MAX_REMEMBERED,
    MAX_STRANGERS,
    Limiter,
)


async def settle() -> None:
    """Let everything run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


class Crowd:
    """Tasks that hold places until they are let go."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.held: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._go = asyncio.Event()

    def come(self, host: str, count: int = 1) -> list[asyncio.Task[None]]:
        made = [asyncio.create_task(self._hold(host)) for _ in range(count)]
        self.tasks += made
        return made

    async def _hold(self, host: str) -> None:
        async with self.limiter.at(host):
            self.held.append(host)
            await self._go.wait()

    async def go(self) -> None:
        self._go.set()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def test_a_host_gets_more_as_it_answers_and_one_when_it_does_not() -> None:
    limiter = Limiter()
    for answers, expected in (
        (0, FIRST_PLACES),
        (1, 6),
        (2, MAX_CONNECTIONS_A_HOST),
        (9, MAX_CONNECTIONS_A_HOST),
    ):
        for _ in range(answers):
            limiter.answered(f"h{answers}")
        crowd = Crowd(limiter)
        crowd.come(f"h{answers}", 20)
        await settle()
        assert len(crowd.held) == expected
        await crowd.go()
    limiter.silent("h9")
    crowd = Crowd(limiter)
    crowd.come("h9", 20)
    await settle()
    assert len(crowd.held) == 1
    await crowd.go()
    assert len(crowd.held) == 20


async def test_hosts_that_do_not_answer_share_half_however_many_they_are() -> None:
    limiter, crowd = Limiter(), None
    crowd = Crowd(limiter)
    for number in range(MAX_CONNECTIONS):
        crowd.come(f"h{number}", 2)
    await settle()
    assert len(crowd.held) == MAX_STRANGERS
    limiter.answered("good")
    good = Crowd(limiter)
    good.come("good", 3)
    await settle()
    assert len(good.held) == 3
    await good.go()
    await crowd.go()
    assert len(crowd.held) == 2 * MAX_CONNECTIONS


async def test_all_places_and_no_more_are_given_out_in_turn() -> None:
    limiter = Limiter()
    crowd = Crowd(limiter)
    for number in range(2 * MAX_CONNECTIONS):
        limiter.answered(f"h{number}")
        crowd.come(f"h{number}", 3)
    await settle()
    assert len(crowd.held) == MAX_CONNECTIONS
    assert max(map(crowd.held.count, crowd.held)) <= 3
    await crowd.go()
    assert repr(limiter).startswith("Limiter(0 in use, 0 by strangers")


@pytest.mark.parametrize("granted_first", [False, True])
async def test_whoever_gives_up_leaves_its_place_to_others(granted_first: bool) -> None:
    limiter = Limiter()
    async with AsyncExitStack() as held:
        for _ in range(FIRST_PLACES):
            await held.enter_async_context(limiter.at("a"))
        crowd = Crowd(limiter)
        (gives_up, _) = crowd.come("a", 2)
        await settle()
        if not granted_first:
            gives_up.cancel()
    if granted_first:
        gives_up.cancel()
    await settle()
    await crowd.go()
    assert len(crowd.held) == 1
    assert repr(limiter).startswith("Limiter(0 in use, 0 by strangers")


async def test_hosts_are_not_remembered_without_end() -> None:
    limiter = Limiter()
    for number in range(MAX_REMEMBERED + 50):
        async with limiter.at(f"h{number}"):
            pass
    assert f"{MAX_REMEMBERED} hosts" in repr(limiter)


async def test_who_gives_up_as_a_place_gets_free_has_only_given_up() -> None:
    """All at once, as those do that wait equally long; the place is passed on before they notice."""
    limiter = Limiter()
    holding, waiting = Crowd(limiter), Crowd(limiter)
    holding.come("h", FIRST_PLACES)
    given_up = waiting.come("h", 4)
    await settle()
    holding.tasks[0].cancel()  # It wakes first.
    for task in given_up:
        task.cancel()
    await holding.go()
    outcomes = await asyncio.gather(*given_up, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError] * 4
    next_one = Crowd(limiter)
    next_one.come("h", FIRST_PLACES)
    await settle()
    assert next_one.held == ["h"] * FIRST_PLACES, "no place is lost"
    await next_one.go()


async def test_a_place_that_gets_free_meanwhile_goes_to_who_still_waits() -> None:
    limiter = Limiter()
    holding, waiting = Crowd(limiter), Crowd(limiter)
    (first, *_) = holding.come("h", FIRST_PLACES)
    gives_up, stays = waiting.come("h", 2)
    await settle()
    first.cancel()
    await asyncio.sleep(0)
    gives_up.cancel()
    await settle()
    assert waiting.held == ["h"]
    assert not stays.done()
    await holding.go()
    await waiting.go()
