"""Forward-only migrations, then the functions; safe when many processes start at once.

Each file `migrations/NNNN_name.sql` makes tables or moves data. It runs once, in its own transaction. There
are no down migrations: a further migration corrects a mistake. Each file `functions/*.sql` defines functions,
and each function is defined in one place. When the text of one file differs from what was applied last, all
files are applied, in one transaction with the grants of `roles.sql`. After that, functions that no file
defines any more are dropped, once all calls that began before must have ended. The lock of one table covers
all of this; only the owner can take it. A worker of the earlier version may still run meanwhile, so a
function that it calls keeps its signature: a function with another signature gets another name.
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
# `gapless` holds functions that may be granted, the other those that only work inside another function.
SCHEMAS = ("gapless", "gapless_internal")
SUPERSEDED = "superseded: no file of functions defines it any more"
"""The comment on a function that is to be dropped, so that a later start can finish the work."""
PATIENCE_WITH_CALLS_S = 30.0
"""The longest that a statement of the service may take: a session that is in a transaction for longer is not
in a call."""
_MARKED = """
select p.oid::regprocedure::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where n.nspname = any ($1) and obj_description(p.oid, 'pg_proc') = $2
"""
_UNDEFINED = """
select p.oid::regprocedure::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where n.nspname = any ($1) and p.xmin <> pg_current_xact_id()::xid and pg_has_role(p.proowner, 'usage')
"""
_TRANSACTIONS = """
select l.virtualxid from pg_locks l join pg_stat_activity a on a.pid = l.pid
where l.locktype = 'virtualxid' and l.mode = 'ExclusiveLock' and a.datname = current_database()
  and l.pid not in (select x.pid from pg_locks x where x.relation = 'gapless.migration_lock'::regclass)
  and l.pid <> pg_backend_pid()
"""
ROLES = ("gapless_service", "gapless_publisher", "gapless_reader")
MIN_SERVER_VERSION = 140000


class MigrationError(Exception):
    """The schema cannot be brought to this program's version; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One migration. `checksum` shows whether the file was edited after it ran."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return _digest(self.sql)


def _digest(sql: str) -> str:
    return hashlib.sha256(sql.encode()).hexdigest()


def migrations() -> list[Migration]:
    """All migrations in order, numbered 1, 2, 3, … without a hole."""
    found = [
        Migration(int(file.name[:4]), file.stem[5:], file.read_text())
        for file in sorted(MIGRATIONS_DIR.glob("[0-9][0-9][0-9][0-9]_*.sql"))
    ]
    assert [m.version for m in found] == list(range(1, len(found) + 1)), "migrations must be numbered densely"
    return found


def function_files() -> dict[str, str]:
    """File name → text of each file of functions, in the order of names; the grants come last."""
    found = {file.stem: file.read_text() for file in sorted(FUNCTIONS_DIR.glob("*.sql"))}
    return {**found, ROLES_FILE.stem: ROLES_FILE.read_text()}


async def migrate(url: str, *, admin_url: str | None = None, patience_s: float = 60.0) -> list[str]:
    """Bring the database at `url` (its owner's credentials) to the newest schema. Returns the names of what
    ran; files of functions as `functions/name`. If `admin_url` is given, it creates the roles that are
    missing.

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
    """Whether there is nothing to do. This also works on a standby and for a user with only read rights."""
    books = await connection.fetchval("select to_regclass('gapless.migration_lock')")
    if books is None or await _pending(connection) or await _changed(connection):
        return False
    return not await _column(connection, _MARKED, SCHEMAS, SUPERSEDED)


@asynccontextmanager
async def _alone(session: asyncpg.Connection) -> AsyncIterator[None]:
    """Hold the lock in a session of its own, because migrations commit one by one. A server that ends idle
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
        # A server that an earlier version set up lacks newer roles.
        admin = await _connect(admin_url, patience_s)
        try:
            await _make_roles(admin)
            # To end a publisher that removed its own timeouts: see gapless.end_holders.
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
    await _drop_superseded(connection)
    return [f"{step.version:04} {step.name}" for step in pending] + [
        f"functions/{name}" for name in changed if name != ROLES_FILE.stem
    ]


async def _make_books(connection: asyncpg.Connection) -> None:
    while await connection.fetchval("select to_regclass('gapless.migration_lock')") is None:
        # A session that creates one of them at the same time waits, and then gets one of these errors.
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
    """Files of functions whose text differs from what was applied last."""
    rows = await connection.fetch("select name, checksum from gapless.function_files")
    applied = {row["name"]: row["checksum"] for row in rows}
    return [name for name, sql in function_files().items() if applied.get(name) != _digest(sql)]


async def _apply(connection: asyncpg.Connection, changed: list[str]) -> None:
    """Define the functions, mark those that no file defines any more, and grant rights again.

    All in one transaction: otherwise the newest schema might lack its grants unnoticed, and functions of two
    versions would call one another.
    """
    files = function_files()
    async with connection.transaction():
        for schema in SCHEMAS:
            if await connection.fetchval("select to_regnamespace($1)", schema) is None:
                await connection.execute(f"create schema {schema}")
        # A function may call one that a later file defines.
        await connection.execute("set local check_function_bodies = off")
        for name, sql in files.items():
            if name != ROLES_FILE.stem:
                await connection.execute(sql)
        for function in await _column(connection, _MARKED, SCHEMAS, SUPERSEDED):
            await connection.execute(f"comment on routine {function} is null")
        # All functions with a definition have just been written by this transaction.
        for function in await _column(connection, _UNDEFINED, SCHEMAS):
            await connection.execute(f"comment on routine {function} is '{SUPERSEDED}'")
        await connection.execute(files[ROLES_FILE.stem])
        await connection.executemany(
            "insert into gapless.function_files (name, checksum) values ($1, $2)"
            " on conflict (name) do update set checksum = excluded.checksum, applied_at = now()",
            [(name, _digest(files[name])) for name in changed],
        )
        await connection.execute("delete from gapless.function_files where name <> all ($1)", list(files))


async def _drop_superseded(connection: asyncpg.Connection) -> None:
    """Drop functions that no file defines, once no old function that calls them can still be running.

    A call that began before the new functions were committed runs on with the old text, in its transaction.
    So this waits for the transactions that are open now, but not for long ones.
    """
    if not await _column(connection, _MARKED, SCHEMAS, SUPERSEDED):
        return
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_WITH_CALLS_S
    older = set(await _column(connection, _TRANSACTIONS))
    while older and loop.time() < deadline:
        await asyncio.sleep(0.05)
        older &= set(await _column(connection, _TRANSACTIONS))
    for function in await _column(connection, _MARKED, SCHEMAS, SUPERSEDED):
        # An object of a user, such as a view, may need it: then the function stays as long as that object.
        with contextlib.suppress(asyncpg.DependentObjectsStillExistError):
            await connection.execute(f"drop routine {function}")


async def _column(connection: asyncpg.Connection, query: str, *arguments: object) -> list[str]:
    return [row[0] for row in await connection.fetch(query, *arguments)]


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
                pass  # Roles belong to the whole server: a migration of another database was faster.
    # Since Postgres 16 the creator of a role is a member that may not take the role before a further grant.
    privilege = "set" if connection.get_server_version().major >= 16 else "member"
    if not await connection.fetchval("select pg_has_role(current_user, $1, $2)", ROLES[0], privilege):
        # If the owner may not grant it: either the service connects as another user, or it reports the error.
        with contextlib.suppress(asyncpg.InsufficientPrivilegeError):
            await connection.execute(f"grant {ROLES[0]} to current_user")
