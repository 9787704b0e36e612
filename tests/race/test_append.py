"""`gapless.append` believes nobody: whatever it is given, seq stays dense and a message stays one line."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from db.connect import DatabaseConfig, connect
from tests.conftest import Database
from tests.patience import PATIENCE_S
from tests.race.support import check_log, rows

APPEND = (
    "select * from gapless.append($1, $2, true, $3, $4, $5, $6, $7,"
    " $8, $9, $10, $11, $12, null, $13, null, $14)"
)


def arguments(
    names: list[str],
    channel: list[int | None],
    *,
    data: list[str] | None = None,
    types: list[str] | None = None,
    keys: list[str] | None = None,
    headers: list[str] | None = None,
    request: list[int | None] | None = None,
    expected: list[int | None] | None = None,
    expected_channel: list[int] | None = None,
    ttls: list[float] | None = None,
) -> list[Any]:
    """What one call takes: messages to the channels of these numbers."""
    count = len(expected or [])
    judged = (
        [[1] * count, [None] * count, [b""] * count, expected, expected_channel] if expected else [None] * 5
    )
    return [
        [1] * len(names),
        names,
        *judged,
        request or [1] * len(channel),
        channel,
        types or ["message"] * len(channel),
        keys,
        data or ["1"] * len(channel),
        headers,
        ttls,
    ]


UNFIT = {
    "a channel twice": arguments(["dup", "dup"], [1, 2]),
    "a channel that there is, twice": arguments(["a", "b", "a"], [1, 2, 3]),
    "a channel that is not named": arguments(["a"], [2]),
    "channel 0": arguments(["a"], [0]),
    "no channel": arguments(["a"], [None]),
    "fewer channels than messages": [*arguments(["a"], [1, 1])[:8], [1], *arguments(["a"], [1, 1])[9:]],
    "more data than messages": arguments(["a"], [1], data=["1", "2"]),
    "fewer keys than messages": arguments(["a"], [1, 1], keys=["k"]),
    "more lives than messages": arguments(["a"], [1], ttls=[1.0, 2.0]),
    "no message": arguments(["a"], []),
    "a name without a namespace": [[1], ["a", "b"], *arguments(["a", "b"], [1, 2])[2:]],
    "a message without a request": arguments(
        ["a"], [1, 1], request=[1, 2], expected=[0], expected_channel=[1]
    ),
    "a head that the batch itself moves": arguments(
        ["a"], [1, 1], request=[1, 2], expected=[None, 0], expected_channel=[1, 1]
    ),
    "a line break in data": arguments(["a"], [1, 1], data=["1", '{"a":\n1}']),
    "a carriage return in data": arguments(["a"], [1], data=["[1,\r2]"]),
    "a line break in headers": arguments(["a"], [1], headers=['{"a":\n"b"}']),
    "a control character in the type": arguments(["a"], [1], types=["a\x1bb"]),
    "an empty type": arguments(["a"], [1], types=[""]),
    "a long type": arguments(["a"], [1], types=["t" * 129]),
    "a line separator in the key": arguments(["a"], [1], keys=["a\x85b"]),
    "a long key": arguments(["a"], [1], keys=["k" * 256]),
}


@pytest.mark.parametrize("unfit", UNFIT.values(), ids=UNFIT)
async def test_what_does_not_fit_stores_nothing(
    database: Database, owner: asyncpg.Connection, unfit: list[Any]
) -> None:
    session = await connect(DatabaseConfig(database.service_url), application="test", timeout_s=PATIENCE_S)
    try:
        await session.fetchrow(APPEND, *arguments(["a"], [1]))
        with pytest.raises((asyncpg.InvalidParameterValueError, asyncpg.NotNullViolationError)):
            await session.fetchrow(APPEND, *unfit)
        row = await session.fetchrow(APPEND, *arguments(["a", "b"], [1, 2, 1]))
        assert row is not None
        assert row["seqs"] == [2, 1, 3]
    finally:
        session.terminate()
    assert len(await rows(owner)) == 4
    await check_log(owner)


async def test_a_head_that_is_not_where_its_channel_says_stops_everybody(
    database: Database, owner: asyncpg.Connection
) -> None:
    """Somebody with all rights changed something by hand: no id comes below one that was given already."""
    session = await connect(DatabaseConfig(database.service_url), application="test", timeout_s=PATIENCE_S)
    try:
        await session.fetchrow(APPEND, *arguments(["a"], [1, 1]))
        await owner.execute("update gapless.channels set last_id = last_id + 1000")
        with pytest.raises(asyncpg.DataCorruptedError):
            await session.fetchrow(APPEND, *arguments(["a"], [1]))
    finally:
        session.terminate()
    assert len(await rows(owner)) == 2
