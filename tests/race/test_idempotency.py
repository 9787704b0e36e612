"""One key, many askers at once: one is stored, all hear of that one."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from db.appender import Appender
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Appended
from tests.conftest import Database
from tests.race.support import appenders, check_log, one, rows, stored

ASKERS = 12


async def test_duplicates_at_once_store_one(database: Database, owner: asyncpg.Connection) -> None:
    async with appenders(database, ASKERS) as many:
        for turn in range(5):
            answers = await asyncio.gather(*(a.append([one("a", key=f"k{turn}")]) for a in many))
            positions = {stored(answer).positions[0].id for (answer,) in answers}
            assert len(positions) == 1
            assert sum(not stored(answer).replayed for (answer,) in answers) == 1
    assert len(await rows(owner)) == 5
    await check_log(owner)


async def test_a_key_is_one_across_channels(database: Database, owner: asyncpg.Connection) -> None:
    """The channels' locks do not help here: the key's own row decides."""
    async with appenders(database, ASKERS) as many:
        for turn in range(5):
            asked = [one(f"c{n % 4}", key=f"k{turn}") for n in range(ASKERS)]
            answers = await asyncio.gather(
                *(a.append([request]) for a, request in zip(many, asked, strict=True))
            )
            assert len({stored(answer).positions[0].id for (answer,) in answers}) == 1
    assert len(await rows(owner)) == 5
    await check_log(owner)


async def test_another_body_under_the_key_is_refused_whoever_wins(
    database: Database, owner: asyncpg.Connection
) -> None:
    async with appenders(database, ASKERS) as many:
        asked = [one(f"c{n % 3}", key="k", body=bytes([n % 2])) for n in range(ASKERS)]
        answers = [
            answer
            for (answer,) in await asyncio.gather(
                *(a.append([request]) for a, request in zip(many, asked, strict=True))
            )
        ]
    (row,) = await rows(owner)
    kept = [a for a in answers if isinstance(a, Appended)]
    refused = [a for a in answers if isinstance(a, GaplessError)]
    assert {a.positions[0].id for a in kept} == {row["id"]}
    assert (len(kept), len(refused)) == (ASKERS // 2, ASKERS // 2)
    assert {a.code for a in refused} == {Code.IDEMPOTENCY_MISMATCH}


async def test_keys_in_opposite_orders_lock_nobody_out(database: Database, owner: asyncpg.Connection) -> None:
    async def ask(appender: Appender, turn: int, *, backwards: bool) -> None:
        batch = [one(f"c{n}-{backwards}", key=f"{turn}-{n}") for n in range(8)]
        for answer in await appender.append(batch[::-1] if backwards else batch):
            stored(answer)

    async with appenders(database, 2) as (first, second):
        for turn in range(10):
            await asyncio.gather(ask(first, turn, backwards=False), ask(second, turn, backwards=True))
    assert len(await rows(owner)) == 80
    await check_log(owner)


@pytest.mark.parametrize("hours", [23, 25])
async def test_a_key_is_remembered_for_a_day(
    database: Database, owner: asyncpg.Connection, hours: int
) -> None:
    async with appenders(database, ASKERS) as many:
        first = stored((await many[0].append([one("a", key="k")]))[0])
        await owner.execute(
            "update gapless.idempotency set stored_at = stored_at - $1 * interval '1 hour'", hours
        )
        answers = await asyncio.gather(*(a.append([one("a", key="k")]) for a in many))
        ids = {stored(answer).positions[0].id for (answer,) in answers}
    assert len(ids) == 1
    assert (ids == {first.positions[0].id}) is (hours < 24)
    assert len(await rows(owner)) == (1 if hours < 24 else 2)
