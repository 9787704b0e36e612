"""Pages of several channels are the log, filtered: whatever way they are read, and wherever they are cut."""

from __future__ import annotations

import pytest

import db.reader
from db.appender import Appender
from db.connect import DatabaseConfig, Pool
from db.reader import Reader
from subscriptions.domain.model import Append, NewMessage
from subscriptions.domain.selection import Selection, select
from tests.conftest import Database

CHANNELS = 40
MESSAGES = 2000


async def _fill(config: DatabaseConfig) -> None:
    """Messages of many channels, some channels with many and some with few; every third has another type."""
    appender = Appender(config)
    for first in range(0, MESSAGES, 500):
        messages = tuple(
            NewMessage(f"m.{number * number % CHANNELS}", b"1", type="odd" if number % 3 else "even")
            for number in range(first, first + 500)
        )
        await appender.append([Append("default", messages)])
    appender.terminate()


async def _read(reader: Reader, selection: Selection, upto: int, limit: int) -> list[int]:
    """Every id, page by page."""
    found: list[int] = []
    cursor = 0
    while cursor < upto:
        page = await reader.page(selection, cursor, upto, limit)
        assert page.complete_to > cursor, "every page gets on"
        assert all(cursor < m.id <= page.complete_to for m in page.messages)
        found += [m.id for m in page.messages]
        cursor = page.complete_to
    return found


@pytest.mark.parametrize("limit", [1, 7, 1000])
async def test_few_and_many_channels_are_read_alike(
    database: Database, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(db.reader, "STRETCH", 50)
    config = DatabaseConfig(database.service_url)
    await _fill(config)
    pool = Pool(config, application="test", size=2)
    reader = Reader(pool, pool, pool)
    upto = (await reader.tick()).last_id
    rows = await pool.fetch("span", 0, upto, MESSAGES, 2**31)
    log = [(r["id"], r["channel"], r["type"]) for r in rows[:-1]]
    assert len(log) == MESSAGES

    names = sorted({channel for _, channel, _ in log})
    for selection in (
        select("default", [], ["m.*"]),
        select("default", names[:17]),
        select("default", names[:16]),
        select("default", names[:2]),
        select("default", [], ["m.*"], ["even"]),
        select("default", names[:3], (), ["even"]),
    ):
        wanted = [
            id_
            for id_, channel, kind in log
            if (selection.patterns or channel in selection.names)
            and selection.admits(kind, None, is_change=False)
        ]
        if limit > 1 or len(wanted) < 500:
            assert await _read(reader, selection, upto, limit) == wanted
    await pool.close()
