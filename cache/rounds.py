"""Questions to Redis, asked together: one round trip takes all that wait, up to a bound."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from cache.keeping import close, end_if_cancelled, words
from cache.link import Address, Link
from cache.presence_members import Command

log = logging.getLogger(__name__)

RETRY_S = 1.0
MAX_ARGUMENTS: Final = 1000
"""Arguments of the commands that are sent together, roughly. To build and to read so many takes some
milliseconds, in which the event loop does nothing else."""
MAX_MEMBERS: Final = 20_000
"""Members that the answers of a round may have together, unless one question alone asks for more."""


class _Asked(NamedTuple):
    commands: Sequence[Command]
    members: int
    answers: asyncio.Future[list[Any]]


class Rounds:
    """One connection for the questions of many. `away` makes the error for those that get no answer."""

    def __init__(self, address: Address, away: Callable[[], Exception]) -> None:
        self._address = address
        self._away = away
        self._waiting: deque[_Asked] = deque()
        self._task: asyncio.Task[None] | None = None
        self._link: Link | None = None
        self._retry_at = 0.0

    async def ask(self, commands: Sequence[Command], members: int = 0) -> list[Any]:
        """The answers. An error is among them only if a key is of another kind. `members`: as many as the
        answers may have."""
        if _now() < self._retry_at:
            raise self._away()
        if not commands:
            return []
        answers: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Asked(commands, members, answers))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._answer_all())
        return await answers

    async def broken(self, answer: object) -> None:
        """An answer was to something else: the connection is opened again."""
        log.debug("an answer to something else: %s", words(answer))
        await self._close_link()

    async def close(self) -> None:
        """Whoever still waits gets no answer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._close_link()

    async def _answer_all(self) -> None:
        try:
            while together := self._next():
                try:
                    answers = await self._asked([command for asked in together for command in asked.commands])
                except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001
                    # As in `Keeper.use_one`, any error may come.
                    self._fail(together)
                    await self._close_link()
                    end_if_cancelled()
                    self._retry_at = _now() + RETRY_S
                    log.debug("Redis cannot be asked: %s", words(error))
                    break
                for asked in together:
                    own, answers = answers[: len(asked.commands)], answers[len(asked.commands) :]
                    if not asked.answers.done():
                        asked.answers.set_result(own)
        finally:
            self._fail(self._waiting)
            self._waiting.clear()

    async def _asked(self, commands: Sequence[Command]) -> list[Any]:
        if self._link is None:
            self._link = await Link.open(self._address)
        answers = await self._link.ask(commands)
        refuse_errors(answers)
        return answers

    def _next(self) -> list[_Asked]:
        """What is asked together next, as far as somebody still waits for it."""
        together: list[_Asked] = []
        arguments = members = 0
        while self._waiting:
            first = self._waiting[0]
            if not first.answers.done():
                arguments += sum(map(len, first.commands))
                members += first.members
                if together and (arguments > MAX_ARGUMENTS or members > MAX_MEMBERS):
                    break
                together.append(first)
            self._waiting.popleft()
        return together

    def _fail(self, some: Sequence[_Asked] | deque[_Asked]) -> None:
        for asked in some:
            if not asked.answers.done():
                asked.answers.set_exception(self._away())

    async def _close_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await close(link)


def refuse_errors(answers: Sequence[object]) -> None:
    """Raise the first error, except that a key is of another kind."""
    for answer in answers:
        if isinstance(answer, Exception) and not str(answer).startswith("WRONGTYPE"):
            raise answer


def _now() -> float:
    return asyncio.get_running_loop().time()
