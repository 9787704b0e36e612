"""An export that loses the rest of what was asked for says so, whatever took it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest

from db.connect import DatabaseConfig, Pool
from db.history import EXPORT_BATCH, History
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, NewMessage
from subscriptions.ports import HistoryQuery
from tests.conftest import Database
from tests.race.support import appenders

MESSAGES = EXPORT_BATCH + 500
TYPES = [(), ("a",)]


@pytest.fixture
async def history(database: Database) -> AsyncIterator[History]:
    async with appenders(database, 1) as (appender,):
        for first in range(0, MESSAGES, 500):
            kinds = ["a" if first + n < EXPORT_BATCH + 1 else "b" for n in range(500)]
            await appender.append([Append("default", tuple(NewMessage("c", b"1", type=t) for t in kinds))])
    pool = Pool(DatabaseConfig(database.service_url), application="test", size=1)
    yield History(pool)
    await pool.close()


async def _first_batch(history: History, types: tuple[str, ...]) -> AsyncIterator[list[object]]:
    query = HistoryQuery("default", "c", None, None, None, types, (), 10**9)
    batches = history.export(query)
    assert len(await anext(batches)) == EXPORT_BATCH
    return batches  # type: ignore[return-value]


@pytest.mark.parametrize("types", TYPES)
async def test_retention_that_took_all_the_rest(
    history: History, owner: asyncpg.Connection, types: tuple[str, ...]
) -> None:
    batches = await _first_batch(history, types)
    await owner.execute("""select gapless.set_channel(1, 'c', '{"max_age": 1}', false)""")
    await owner.execute("update gapless.messages set created_at = created_at - interval '1 hour'")
    await owner.execute("select gapless.trim_channels(10)")
    await owner.execute("delete from gapless.messages")
    with pytest.raises(GaplessError) as ended:
        await anext(batches)
    assert ended.value.code is Code.CURSOR_EXPIRED


@pytest.mark.parametrize("types", TYPES)
async def test_a_channel_that_was_deleted_half_way(
    history: History, owner: asyncpg.Connection, types: tuple[str, ...]
) -> None:
    batches = await _first_batch(history, types)
    assert await owner.fetchval("select gapless.delete_channel(1, 'c')")
    await owner.execute("delete from gapless.messages")
    with pytest.raises(GaplessError) as ended:
        await anext(batches)
    assert ended.value.code is Code.CHANNEL_NOT_FOUND
