"""Many askers, few questions: no answer is older than its question, and nobody's leaving hurts the others."""

from __future__ import annotations

import asyncio

import pytest

from subscriptions.engine.single_flight import SingleFlight, SingleFlights
from tests.sim.loop import run


class Source:
    """Counts how often it is asked; an answer takes a second."""

    def __init__(self) -> None:
        self.begun = 0
        self.at_once = 0
        self.fails = False

    async def ask(self) -> int:
        self.begun += 1
        self.at_once += 1
        assert self.at_once == 1, "one at a time"
        number = self.begun
        await asyncio.sleep(1)
        self.at_once -= 1
        if self.fails:
            raise ValueError(number)
        return number


def test_a_crowd_asks_once() -> None:
    async def program() -> None:
        source = Source()
        shared = SingleFlight(source.ask)
        assert await asyncio.gather(*(shared() for _ in range(100))) == [1] * 100

    run(program())


def test_whoever_comes_while_it_is_asked_gets_the_next_answer() -> None:
    async def program() -> None:
        source = Source()
        shared = SingleFlight(source.ask)
        first = asyncio.create_task(shared())
        await asyncio.sleep(0.5)
        late = [asyncio.create_task(shared()) for _ in range(50)]
        assert await first == 1
        assert await asyncio.gather(*late) == [2] * 50
        assert await shared() == 3

    run(program())


def test_an_error_goes_to_those_who_asked_and_no_further() -> None:
    async def program() -> None:
        source = Source()
        shared = SingleFlight(source.ask)
        source.fails = True
        first = [asyncio.create_task(shared()) for _ in range(3)]
        await asyncio.sleep(0.5)
        second = asyncio.create_task(shared())
        outcomes = await asyncio.gather(*first, return_exceptions=True)
        assert all(isinstance(outcome, ValueError) for outcome in outcomes)
        source.fails = False
        assert await second == 2

    run(program())


def test_one_who_leaves_takes_nothing_with_him() -> None:
    async def program() -> None:
        source = Source()
        shared = SingleFlight(source.ask)
        leaving, staying = asyncio.create_task(shared()), asyncio.create_task(shared())
        await asyncio.sleep(0.5)
        leaving.cancel()
        assert await staying == 1
        with pytest.raises(asyncio.CancelledError):
            await leaving

    run(program())


def test_each_question_is_asked_once_and_forgotten() -> None:
    """Also one whose askers have left, and one that failed."""

    async def program() -> None:
        asked: list[str] = []

        async def ask(question: str) -> str:
            asked.append(question)
            number = asked.count(question)
            await asyncio.sleep(1)
            if question == "wrong":
                raise ValueError(question)
            return f"{question} {number}"

        shared = SingleFlights(ask)
        first = [asyncio.create_task(shared(question)) for question in ["a", "b", "wrong"] * 10]
        await asyncio.sleep(0.5)
        late, leaving = asyncio.create_task(shared("a")), asyncio.create_task(shared("b"))
        answers = await asyncio.gather(*first, return_exceptions=True)
        assert [str(answer) for answer in answers] == ["a 1", "b 1", "wrong"] * 10
        leaving.cancel()
        assert await late == "a 2"
        await asyncio.sleep(1)
        assert sorted(asked) == ["a", "a", "b", "b", "wrong"]
        assert len(shared) == 0

    run(program())
