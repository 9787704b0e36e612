"""Facts about the database for `gapless doctor`, which judges them elsewhere."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import asyncpg

from db.connect import CONNECT_TIMEOUT_S, FAILURES, SERVICE_ROLE, SESSION
from db.migrate import MIN_SERVER_VERSION, migrations
from db.queries import load

OLDEST_MAJOR = MIN_SERVER_VERSION // 10000
STATEMENT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """Facts about a database. `clock_ahead_s`: how many seconds the database's clock is ahead of this
    machine's, give or take half of `round_trip_s`. `role`: the role of the service in the database;
    `role_error`: why it cannot take that role. `schema_version`: None before the first migration;
    `schema_wanted`: the version of this program. `max_locks`: how many locks for each transaction the shared
    lock table has room for; a statement over the whole log locks each of its `segments`. `hidden`:
    connections to this database whose details the role may not see. `pooled`: connections change their server
    process between statements. `credentials_required`: every request needs a credential. `ids_left`: ids
    above the last one taken; None before the first migration.
    """

    version: str
    major: int
    login: str
    role: str
    role_error: str | None
    superuser: bool
    standby: bool
    encoding: str
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    max_prepared_transactions: int
    prepared_transactions: int
    max_connections: int
    connections: int
    hidden: int
    max_locks: int
    segments: int
    oldest_transaction_s: float
    clock_ahead_s: float
    round_trip_s: float
    pooled: bool
    schema_version: int | None
    schema_wanted: int
    writable_tables: tuple[str, ...]
    unreadable_tables: tuple[str, ...]
    uncallable_functions: tuple[str, ...]
    credentials_required: bool
    ids_left: int | None


async def examine(url: str) -> DatabaseFacts:
    """The facts, seen in the service's role. Raises `ConnectionError` with a text without the password."""
    connection, role_error = await _connect_as_service(url)
    try:
        return await _facts(url, connection, role_error)
    except FAILURES as error:
        raise ConnectionError(_why(error)) from error
    finally:
        connection.terminate()


async def _facts(url: str, connection: asyncpg.Connection, role_error: str | None) -> DatabaseFacts:
    blocks = load()
    await connection.fetch(blocks["doctor_server"])  # The first call prepares; only the second is timed.
    asked_at, began = time.time(), time.monotonic()
    server = await connection.fetchrow(blocks["doctor_server"])
    round_trip_s = time.monotonic() - began
    assert server is not None
    version: int | None = None
    rights: asyncpg.Record | dict[str, list[str]] = {"writable": [], "unreadable": [], "uncallable": []}
    ids_left: int | None = None
    required = False
    if server["migrated"] and role_error is None:
        version = await connection.fetchval(blocks["schema_version"])
        rights = await connection.fetchrow(blocks["doctor_rights"]) or rights
        ids_left = await connection.fetchval(blocks["doctor_ids_left"])
        if version == len(migrations()):
            required = await connection.fetchval(blocks["keys_state"])
    return DatabaseFacts(
        version=server["version"],
        major=server["number"] // 10000,
        login=server["login"],
        role=server["role"],
        role_error=role_error,
        superuser=server["superuser"],
        standby=server["standby"],
        encoding=server["encoding"],
        fsync=server["fsync"],
        full_page_writes=server["full_page_writes"],
        synchronous_commit=server["synchronous_commit"],
        max_prepared_transactions=server["max_prepared_transactions"],
        prepared_transactions=server["prepared"],
        max_connections=server["max_connections"],
        connections=server["connections"],
        hidden=server["hidden"],
        max_locks=server["max_locks"],
        segments=server["segments"],
        oldest_transaction_s=server["oldest_transaction"],
        clock_ahead_s=server["clock"] - (asked_at + round_trip_s / 2),
        round_trip_s=round_trip_s,
        pooled=await _is_pooled(url, connection),
        schema_version=version,
        schema_wanted=len(migrations()),
        writable_tables=tuple(rights["writable"]),
        unreadable_tables=tuple(rights["unreadable"]),
        uncallable_functions=tuple(rights["uncallable"]),
        credentials_required=required,
        ids_left=ids_left,
    )


async def _connect_as_service(url: str) -> tuple[asyncpg.Connection, str | None]:
    """Connect as the service does. If the user may not take the service's role, connect as the login role;
    also
    returns why not."""
    try:
        return await _connect(url, {"role": SERVICE_ROLE}), None
    except (asyncpg.InvalidParameterValueError, asyncpg.InsufficientPrivilegeError) as error:
        why = _why(error)
    except FAILURES as error:
        raise ConnectionError(_why(error)) from error
    try:
        return await _connect(url, {}), why
    except FAILURES as error:
        raise ConnectionError(_why(error)) from error


async def _connect(url: str, settings: dict[str, str]) -> asyncpg.Connection:
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        connection: asyncpg.Connection = await asyncpg.connect(
            url,
            command_timeout=STATEMENT_TIMEOUT_S,
            server_settings={**SESSION, "application_name": "gapless doctor", **settings},
        )
    return connection


async def _is_pooled(url: str, connection: asyncpg.Connection) -> bool:
    """Whether a transaction pooler is in between. Such a pooler gives a freed server connection to the next
    transaction.

    So another client that begins a transaction gets the server process that has just served this one.
    """
    backend = load()["doctor_backend"]
    other, _ = await _connect_as_service(url)
    try:
        mine = await connection.fetchval(backend)
        async with other.transaction():
            theirs = await other.fetchval(backend)
            return bool(theirs == mine or await connection.fetchval(backend) != mine)
    finally:
        other.terminate()


def _why(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")
