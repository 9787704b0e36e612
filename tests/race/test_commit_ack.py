"""The commit happened and its answer was lost: with a key the request is stored once, without one it is
stored once or not at all, and the publisher says so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from db.appender import Appender
from db.connect import DatabaseConfig
from load.relay import Streams, forward, until_first_ends
from subscriptions.domain.errors import Code, GaplessError
from tests.conftest import Database
from tests.race.support import check_log, one, rows, stored

READY_FOR_QUERY = b"Z\x00\x00\x00\x05I"


class AnswerEater:
    """Stands between a client and the database; once `armed` it eats the next answer, whole, and hangs up."""

    def __init__(self, server_url: str, own_dir: Path) -> None:
        self._server_url = server_url
        self._own = own_dir / ".s.PGSQL.5432"
        self._streams = Streams()
        self.armed = 0
        self.eaten = 0

    async def start(self) -> None:
        await self._streams.listen_unix(self._serve, self._own)

    async def stop(self) -> None:
        await self._streams.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._streams.connected_to(self._server_url) as (answers, server):
            await until_first_ends(self._answer(answers, writer), forward(reader, server))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        eating = b""
        while data := await reader.read(65536):
            if not self.armed:
                writer.write(data)
                await writer.drain()
                continue
            eating += data
            if eating.endswith(READY_FOR_QUERY):
                self.armed -= 1
                self.eaten += 1
                return


@pytest.fixture
async def eater(database: Database, tmp_path: Path) -> AsyncIterator[AnswerEater]:
    made = AnswerEater(database.service_url, tmp_path)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def appender(database: Database, eater: AnswerEater, tmp_path: Path) -> AsyncIterator[Appender]:
    """An appender behind the eater, whose statement is prepared."""
    role = urlsplit(database.service_url).username
    made = Appender(DatabaseConfig(f"postgresql://{role}@/{database.name}?host={tmp_path}&port=5432"))
    await made.append([one("warm")])
    yield made
    made.terminate()


@pytest.mark.parametrize("times", [1, 2])
async def test_with_a_key_the_answer_comes_after_all(
    eater: AnswerEater, appender: Appender, owner: asyncpg.Connection, times: int
) -> None:
    eater.armed = 1
    (answer,) = await appender.append([one("a", key="k")])
    (row,) = await rows(owner, "a")
    assert stored(answer).replayed
    assert stored(answer).positions[0].id == row["id"]
    if times == 2:
        eater.armed = 1  # The answer that repeats the first one is lost too.
        (again,) = await appender.append([one("a", key="k")])
        assert stored(again).positions[0].id == row["id"]
    assert eater.eaten == times
    assert len(await rows(owner, "a")) == 1
    await check_log(owner)


async def test_without_a_key_it_says_that_it_does_not_know(
    eater: AnswerEater, appender: Appender, owner: asyncpg.Connection
) -> None:
    eater.armed = 1
    with pytest.raises(GaplessError, match="stored once or not at all") as refused:
        await appender.append([one("a")])
    assert (refused.value.code, refused.value.retryable) == (Code.UNAVAILABLE, True)
    assert len(await rows(owner, "a")) == 1
    (answer,) = await appender.append([one("a")])
    assert stored(answer).positions[0].seq == 2


async def test_one_request_without_a_key_keeps_its_batch_from_being_asked_again(
    eater: AnswerEater, appender: Appender, owner: asyncpg.Connection
) -> None:
    eater.armed = 1
    with pytest.raises(GaplessError):
        await appender.append([one("a", key="k"), one("a")])
    (answer,) = await appender.append([one("a", key="k")])
    assert stored(answer).replayed
    assert [r["seq"] for r in await rows(owner, "a")] == [1, 2]
