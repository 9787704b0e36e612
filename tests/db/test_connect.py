"""What a broken connection means to those who ask the database."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from db.connect import DatabaseConfig, Pool, connect
from subscriptions.domain.errors import Code, GaplessError
from tests.conftest import Database
from tests.patience import PATIENCE_S


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress"),
        asyncpg.InterfaceError("connection is closed"),
        asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        ConnectionResetError(),
        TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_whatever_the_driver_says_of_a_broken_connection_is_unavailable(
    database: Database, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    pool = Pool(DatabaseConfig(database.service_url), application="test", size=1)
    assert await pool.fetchval("schema_version") is not None
    broken: list[object] = []

    async def fetch(connection: asyncpg.Connection, *_: object) -> None:
        broken.append(connection)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(asyncpg.Connection, "fetch", fetch)
        with pytest.raises(GaplessError) as refused:
            await pool.fetchval("schema_version")
    assert refused.value.code is Code.UNAVAILABLE
    # The connection that failed is not handed on: the next statement has one of its own.
    async with pool.acquire() as connection:
        assert connection not in broken
        assert await connection.fetchval("select 1") == 1
    await pool.close()


@pytest.mark.parametrize(
    "error", [TimeoutError(), asyncio.CancelledError()], ids=lambda error: type(error).__name__
)
async def test_a_connection_whose_first_statement_fails_is_closed(
    database: Database, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    opened: list[asyncpg.Connection] = []

    async def execute(connection: asyncpg.Connection, *_: object) -> None:
        opened.append(connection)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(asyncpg.Connection, "execute", execute)
        with pytest.raises(GaplessError if isinstance(error, TimeoutError) else asyncio.CancelledError):
            await connect(DatabaseConfig(database.service_url), application="test", timeout_s=PATIENCE_S)
    (only,) = opened
    assert only.is_closed()


def test_what_is_logged_of_a_database_holds_no_password() -> None:
    assert "secret" not in repr(DatabaseConfig("postgresql://gapless:secret@db/gapless"))


async def test_who_waits_for_a_connection_gets_its_turn(database: Database) -> None:
    """However soon whoever has it wants it again."""
    pool = Pool(DatabaseConfig(database.service_url), application="test", size=1, wait_s=PATIENCE_S)

    async def again_and_again() -> None:
        while True:
            await pool.fetchval("schema_version")

    greedy = asyncio.create_task(again_and_again())
    try:
        assert await asyncio.gather(*(pool.fetchval("schema_version") for _ in range(3)))
    finally:
        greedy.cancel()
        await asyncio.wait([greedy])
        await pool.close()


async def test_whoever_gives_up_waiting_takes_nothing_along(database: Database) -> None:
    pool = Pool(DatabaseConfig(database.service_url), application="test", size=1)
    async with pool.acquire():
        waiting = [asyncio.create_task(pool.fetchval("schema_version")) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
    # This one was given the connection, and has not run since.
    waiting[1].cancel()
    assert await waiting[2]
    await pool.close()
