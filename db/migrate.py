"""Forward-only migrations, then the functions; safe when many processes start at once.

Each file `migrations/NNNN_name.sql` makes tables or moves data. It runs once, in its own transaction. There
is no way down: a mistake is mended by a further migration. Each file `functions/*.sql` defines functions,
every one of them in one place. It is applied whenever its text differs from what was applied last, all
changed files in one transaction with the grants of `roles.sql`. One table's lock covers both; nobody but the
owner can take it. A worker of the program before may still run meanwhile, so a function keeps its signature:
one with another signature gets another name.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from db.connect import CONNECT_TIMEOUT_S, SESSION

MIGRATIONS_DIR = Path(__file__).with_name("migrations")
FUNCTIONS_DIR = Path(__file__).with_name("functions")
ROLES_FILE = Path(__file__).with_name("roles.sql")
BOOKS = """
create schema if not exists gapless;
create table if not exists gapless.migrations (
    version integer primary key, name text not null, checksum text not null,
    applied_at timestamptz not null default now());
create table if not exists gapless.function_files (
    name text primary key, checksum text not null, applied_at timestamptz not null default now());
create table if not exists gapless.migration_lock ();
"""
ROLES = ("gapless_service", "gapless_publisher", "gapless_reader")
MIN_SERVER_VERSION = 140000


class MigrationError(Exception):
    """The schema cannot be brought to this program's version; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step. `checksum` tells an edited file from the one that ran."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return _digest(self.sql)


def _digest(sql: str) -> str:
    return hashlib.sha256(sql.encode()).hexdigest()


def migrations() -> list[Migration]:
    """All steps in order, numbered 1, 2, 3, … without a hole."""
    found = [
        Migration(int(file.name[:4]), file.stem[5:], file.read_text())
        for file in sorted(MIGRATIONS_DIR.glob("[0-9][0-9][0-9][0-9]_*.sql"))
    ]
    assert [m.version for m in found] == list(range(1, len(found) + 1)), "migrations must be numbered densely"
    return found


def function_files() -> dict[str, str]:
    """The text of each file of functions by its name, in the order of names; the grants come last."""
    found = {file.stem: file.read_text() for file in sorted(FUNCTIONS_DIR.glob("*.sql"))}
    return {**found, ROLES_FILE.stem: ROLES_FILE.read_text()}


async def migrate(url: str, *, admin_url: str | None = None, patience_s: float = 60.0) -> list[str]:
    """Bring the database at `url` (its owner's credentials) to the newest schema; names of what ran, files of
    functions as `functions/name`. Roles that a step needs are made by `admin_url` if it is given.

    Waits up to `patience_s` seconds for a database that does not answer yet. Raises MigrationError.
    """
    connection = await _connect(url, patience_s)
    try:
        if connection.get_server_version().major < MIN_SERVER_VERSION // 10000:
            raise MigrationError(f"Postgres 14 or newer is needed, this is {connection.get_server_version()}")
        if await _is_current(connection):
            return []
        await _make_books(connection)
        async with _alone(await _connect(url, patience_s)):
            return await _run(connection, admin_url, patience_s)
    except asyncpg.PostgresError as error:
        raise MigrationError(f"migration failed: {error}") from error
    finally:
        await connection.close(timeout=5)


async def _connect(url: str, patience_s: float) -> asyncpg.Connection:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    while True:
        try:
            connection: asyncpg.Connection = await asyncpg.connect(
                url,
                timeout=CONNECT_TIMEOUT_S,
                server_settings={**SESSION, "application_name": "gapless migrate"},
            )
            return connection
        except (OSError, TimeoutError, asyncpg.CannotConnectNowError) as error:
            if loop.time() > deadline:
                raise MigrationError(f"the database does not answer: {error}") from error
            await asyncio.sleep(0.2)
        except asyncpg.PostgresError as error:
            raise MigrationError(f"the database refuses the connection: {error}") from error


async def _is_current(connection: asyncpg.Connection) -> bool:
    """Whether there is nothing to do. A standby and a user who may change nothing can ask too."""
    books = await connection.fetchval("select to_regclass('gapless.migration_lock')")
    return books is not None and not await _pending(connection) and not await _changed(connection)


@asynccontextmanager
async def _alone(session: asyncpg.Connection) -> AsyncIterator[None]:
    """Hold the lock by a session of its own, for steps commit one by one. A server that ends idle
    transactions must not end this one, or another start would migrate at the same time."""
    try:
        await session.execute("set idle_in_transaction_session_timeout = 0")
        await session.execute("begin; lock table gapless.migration_lock in exclusive mode")
        yield
    finally:
        session.terminate()


async def _run(connection: asyncpg.Connection, admin_url: str | None, patience_s: float) -> list[str]:
    pending = await _pending(connection)
    changed = await _changed(connection)
    if (pending or changed) and admin_url is not None:
        # A server that an earlier version made lacks the roles that came since.
        admin = await _connect(admin_url, patience_s)
        try:
            await _make_roles(admin)
            # So that a publisher that takes its own limits away can be ended: see gapless.end_holders.
            owner = await connection.fetchval("select quote_ident(current_user)")
            await admin.execute(f"grant pg_signal_backend to {owner}")
        finally:
            await admin.close(timeout=5)
    if pending or changed:
        await _make_roles(connection)
    for step in pending:
        async with connection.transaction():
            await connection.execute(step.sql)
            await connection.execute(
                "insert into gapless.migrations (version, name, checksum) values ($1, $2, $3)",
                step.version,
                step.name,
                step.checksum,
            )
    if pending or changed:
        await _apply(connection, changed)
    return [f"{step.version:04} {step.name}" for step in pending] + [
        f"functions/{name}" for name in changed if name != ROLES_FILE.stem
    ]


async def _make_books(connection: asyncpg.Connection) -> None:
    while await connection.fetchval("select to_regclass('gapless.migration_lock')") is None:
        # Who makes one of them at the same time waits, and is told that it was made.
        with contextlib.suppress(asyncpg.DuplicateTableError, asyncpg.UniqueViolationError):
            await connection.execute(BOOKS)


async def _pending(connection: asyncpg.Connection) -> list[Migration]:
    rows = await connection.fetch("select version, checksum from gapless.migrations")
    applied = {row["version"]: row["checksum"] for row in rows}
    steps = migrations()
    if applied and max(applied) > len(steps):
        raise MigrationError(
            f"the schema is at version {max(applied)}, newer than this program's {len(steps)}: update Gapless"
        )
    for step in steps:
        if applied.get(step.version, step.checksum) != step.checksum:
            raise MigrationError(f"migration {step.version} was changed after it ran here")
    return [step for step in steps if step.version not in applied]


async def _changed(connection: asyncpg.Connection) -> list[str]:
    """Files of functions whose text is not what was applied last."""
    rows = await connection.fetch("select name, checksum from gapless.function_files")
    applied = {row["name"]: row["checksum"] for row in rows}
    return [name for name, sql in function_files().items() if applied.get(name) != _digest(sql)]


async def _apply(connection: asyncpg.Connection, changed: list[str]) -> None:
    """Define the functions of these files, and grant anew.

    In one transaction: nobody would notice that a newest schema lacks its grants, and functions of two
    versions would call one another.
    """
    files = function_files()
    async with connection.transaction():
        # A function may call one of a file that comes later.
        await connection.execute("set local check_function_bodies = off")
        for name in changed:
            if name != ROLES_FILE.stem:
                await connection.execute(files[name])
        await connection.execute(files[ROLES_FILE.stem])
        await connection.executemany(
            "insert into gapless.function_files (name, checksum) values ($1, $2)"
            " on conflict (name) do update set checksum = excluded.checksum, applied_at = now()",
            [(name, _digest(files[name])) for name in changed],
        )


async def _make_roles(connection: asyncpg.Connection) -> None:
    for role in ROLES:
        if not await connection.fetchval("select 1 from pg_roles where rolname = $1", role):
            try:
                await connection.execute(f"create role {role} nologin")
            except asyncpg.InsufficientPrivilegeError as error:
                raise MigrationError(
                    f"role {role} is missing and this user may not create it; as an administrator run:"
                    f" create role {role} nologin; grant {role} to current_user;"
                ) from error
            except (asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError):
                pass  # Roles belong to the whole server: another database's migration was faster.
    # Since Postgres 16 a role's maker is a member that may not take the role on until it is granted so.
    privilege = "set" if connection.get_server_version().major >= 16 else "member"
    if not await connection.fetchval("select pg_has_role(current_user, $1, $2)", ROLES[0], privilege):
        # An owner that may not grant it is not the user the service connects as, or the service will say so.
        with contextlib.suppress(asyncpg.InsufficientPrivilegeError):
            await connection.execute(f"grant {ROLES[0]} to current_user")
