"""Connections: their settings, their timeouts, and what their errors mean.

asyncpg's own timeouts do not help against a database that does not answer: releasing a connection sends a
cancel request and waits for its answer. So every wait here ends in `terminate`, which only closes the socket.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import asyncpg
from prometheus_client import Counter

from db.queries import load
from subscriptions.domain.errors import Code, GaplessError, UnreachableError, unavailable

log = logging.getLogger(__name__)

QUERIES = Counter("gapless_db_queries_total", "Statements sent to Postgres, by block name.", ["query"])

SERVICE_ROLE = "gapless_service"
CONNECT_TIMEOUT_S = 5.0
PUBLISH_TIMEOUT_S = 5.0
"""The database ends a publishing transaction after this: a frozen publisher stalls others no longer. For a
publish in SQL, locks.sql sets the same."""
DECISION_TIMEOUT_S = 10.0
"""The same for a statement that decides. It may publish dead letters, or scheduled messages."""
SESSION: Mapping[str, str] = MappingProxyType(
    {
        # Functions take a lock and then read: with one snapshot for all they would read the old state.
        "default_transaction_isolation": "read committed",
        "default_transaction_read_only": "off",
        "default_transaction_deferrable": "off",
        # How values are written, and what names mean.
        "timezone": "UTC",
        "datestyle": "ISO",
        "intervalstyle": "postgres",
        "bytea_output": "hex",
        "extra_float_digits": "1",
        "standard_conforming_strings": "on",
        "search_path": "pg_catalog",
        # A policy lets the service see all rows where readers see only some.
        "row_security": "on",
        # How statements are planned.
        "jit": "off",
        "plan_cache_mode": "auto",
    }
)
"""Settings of every session of the service; they override those of the role, the database and the server."""
COMMIT_TO_DISK = (
    "select pg_catalog.set_config('synchronous_commit', 'on', false)"
    " where pg_catalog.current_setting('synchronous_commit') = 'off'"
)
"""Makes sure that a commit is on disk before it is answered. A stronger setting than `on` stays."""


@dataclass(frozen=True, slots=True)
class DatabaseConfig:
    """How to reach the database. After connecting, the session takes `role`; None keeps the login role."""

    url: str = field(repr=False)
    role: str | None = SERVICE_ROLE
    statement_timeout_s: float = 30.0
    small_tables: bool = False
    """For statements on tables that usually hold few rows and sometimes many dead ones. Their statistics are
    soon wrong, so plans must always use their indexes."""


async def connect(config: DatabaseConfig, *, application: str, timeout_s: float) -> asyncpg.Connection:
    """Open a connection whose statements the database ends after `timeout_s` seconds.

    Raises GaplessError `unavailable`.
    """
    milliseconds = str(int(timeout_s * 1000))
    settings = {
        **SESSION,
        "application_name": f"gapless {application}",
        "statement_timeout": milliseconds,
        "lock_timeout": milliseconds,
        "idle_in_transaction_session_timeout": milliseconds,
    }
    if config.small_tables:
        settings["enable_seqscan"] = "off"
    if config.role:
        settings["role"] = config.role
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            connection: asyncpg.Connection = await asyncpg.connect(config.url, server_settings=settings)
            try:
                await connection.execute(COMMIT_TO_DISK)
            except BaseException:
                connection.terminate()
                raise
    except asyncpg.InsufficientPrivilegeError as error:
        raise UnreachableError(
            f"the database's user may not take on the role {config.role}: grant it to that user"
        ) from error
    except FAILURES as error:
        raise UnreachableError(
            f"the database cannot be reached: {type(error).__name__}; nothing was stored"
        ) from error
    return connection


class TooMuchAtOnceError(GaplessError):
    """The statement would publish more than one transaction should hold; the caller must ask for less."""

    def __init__(self) -> None:
        super().__init__(Code.UNAVAILABLE, "too much at once; nothing was stored", retry_after=1)


def translate(error: BaseException) -> GaplessError:
    """The GaplessError for an error of the driver. Its cause keeps the details for the log."""
    if isinstance(error, GaplessError):
        return error
    if _is_precondition(error):
        return GaplessError(Code.PRECONDITION_FAILED, f"{error}; nothing was changed")
    if _is_missing(error):
        return GaplessError(Code.SUBSCRIPTION_NOT_FOUND, str(error))
    if getattr(error, "sqlstate", None) == "GL413":
        return TooMuchAtOnceError()
    if getattr(error, "sqlstate", None) == "GL429":
        return GaplessError(Code.RATE_LIMITED, str(error), retry_after=60)
    if getattr(error, "sqlstate", None) == "GL500":
        return unavailable(str(error))
    if isinstance(error, asyncpg.ForeignKeyViolationError):
        return GaplessError(Code.NOT_FOUND, "the namespace does not exist any more; nothing was stored")
    if isinstance(error, asyncpg.DiskFullError | asyncpg.OutOfMemoryError):
        return GaplessError(
            Code.STORAGE_FULL, "the database is out of space; nothing was stored", retry_after=5
        )
    if isinstance(error, asyncpg.LockNotAvailableError | asyncpg.QueryCanceledError):
        return unavailable("something else holds what this needs in the database; nothing was stored")
    return unavailable()


def _is_precondition(error: BaseException) -> bool:
    return getattr(error, "sqlstate", None) == "GL412"


def _is_missing(error: BaseException) -> bool:
    return getattr(error, "sqlstate", None) == "GL404"


Check = Callable[[list[Any], asyncpg.Connection], Awaitable[None]]

FAILURES = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
"""All errors of a driver call with a cause outside this program. The driver raises the last one when a
connection breaks between two of its own steps."""


class Pool:
    """A few connections. Client and server both have a timeout for each statement.

    Waiting for a connection is bounded too: `wait_s` seconds, then `unavailable`.
    """

    def __init__(self, config: DatabaseConfig, *, application: str, size: int, wait_s: float = 10.0) -> None:
        self._config = config
        self._application = application
        self._free: list[asyncpg.Connection | None] = [None] * size
        self._waiting: deque[asyncio.Future[asyncpg.Connection | None]] = deque()
        self._size = size
        self._wait_s = wait_s
        self._blocks = load()

    def __repr__(self) -> str:
        return f"Pool({self._application}: {len(self._free)} of {self._size} free)"

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[asyncpg.Connection]:
        """A live connection. If its use failed or was cancelled, it is closed and not used again."""
        try:
            async with asyncio.timeout(self._wait_s):
                connection = await self._take()
        except TimeoutError as error:
            raise unavailable("all database connections are busy") from error
        healthy = False
        try:
            if connection is None or connection.is_closed():
                connection = await connect(
                    self._config, application=self._application, timeout_s=self._config.statement_timeout_s
                )
            yield connection
            healthy = not connection.is_in_transaction()
        finally:
            if connection is not None and not healthy:
                connection.terminate()
                connection = None
            self._give(connection)

    async def _take(self) -> asyncpg.Connection | None:
        """Take a free connection, in turn: a task that gives one back and wants another waits again."""
        if self._free:
            return self._free.pop()
        turn: asyncio.Future[asyncpg.Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give(turn.result())
            raise

    def _give(self, connection: asyncpg.Connection | None) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(connection)
                return
        self._free.append(connection)

    async def fetch(self, name: str, *args: object, check: Check | None = None) -> list[Any]:
        """All rows of the named block. Raises GaplessError `unavailable` or `storage_full`. `check` gets the
        rows and their connection; if it raises, the error is raised here and that connection is closed."""
        QUERIES.labels(name).inc()
        try:
            async with self.acquire() as connection, asyncio.timeout(self._config.statement_timeout_s + 2):
                rows: list[Any] = await connection.fetch(self._blocks[name], *args)
                if check is not None:
                    await check(rows, connection)
                return rows
        except FAILURES as error:
            # A lock held by others and a definition changed by others are usual; other errors are logged as
            # warnings.
            everyday = (
                isinstance(error, asyncpg.LockNotAvailableError)
                or _is_precondition(error)
                or _is_missing(error)
            )
            level = logging.DEBUG if everyday else logging.WARNING
            log.log(level, "%s failed: %s: %s", name, type(error).__name__, error)
            raise translate(error) from error

    async def fetchrow(self, name: str, *args: object) -> Any:
        """The first row or None; raises as `fetch`."""
        rows = await self.fetch(name, *args)
        return rows[0] if rows else None

    async def fetchval(self, name: str, *args: object) -> Any:
        """The first column of the first row, or None; raises as `fetch`."""
        rows = await self.fetch(name, *args)
        return rows[0][0] if rows else None

    async def close(self) -> None:
        """Close the free connections. Those in use are not closed here."""
        while self._free:
            if (connection := self._free.pop()) is not None:
                connection.terminate()
