"""What only the real appender can be told: content that the database refuses."""

from __future__ import annotations

import asyncpg
import pytest

from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, Appended, NewMessage
from tests.conftest import Database
from tests.race.support import appenders, check_log, one, rows

UNFIT = [
    NewMessage("b", b"{"),
    NewMessage("b", b"[" * 50_000 + b"]" * 50_000),
    NewMessage("b", b"1", key="a\0b"),
    NewMessage("b", b"1", type="\ud800"),
    NewMessage("b", b"1", ttl=1e300),
]


@pytest.mark.parametrize("message", UNFIT, ids=["json", "depth", "nul", "surrogate", "ttl"])
async def test_a_message_that_does_not_fit_fails_alone(
    database: Database, owner: asyncpg.Connection, message: NewMessage
) -> None:
    """Whatever a face let through: its neighbours in the batch are stored, in order."""
    batch = [one("a", "1"), Append("default", (NewMessage("a", b"2"), message)), one("a", "3", key="k")]
    async with appenders(database, 1) as (appender,):
        first, refused, last = await appender.append(batch)
        assert isinstance(first, Appended)
        assert isinstance(refused, GaplessError)
        assert (refused.code, refused.retryable) == (Code.INVALID_REQUEST, False)
        assert isinstance(last, Appended)
        assert [p.seq for p in (*first.positions, *last.positions)] == [1, 2]
    assert [r["data"] for r in await rows(owner)] == ["1", "3"]
    await check_log(owner)
