"""Handles a database that is not there yet: tells errors that may pass from those that need a repair."""

from __future__ import annotations

import asyncpg

from db.connect import CONNECT_TIMEOUT_S, FAILURES
from db.migrate import MigrationError, migrate

_PASSING = ("08", "53", "57P", "25006", "55P03", "58030")
"""Classes of SQL states that may pass: the connection, resources such as a full disk, a server that starts or
stops, a standby that is not promoted yet, a lock that is held, the machine's input and output."""


class DatabaseUnavailableError(Exception):
    """The database cannot be used now. The text says why; a retry later may help."""


async def migrate_now(url: str, admin_url: str | None = None) -> list[str]:
    """Bring the schema to the newest version without waiting for the database; returns the names of what ran.

    Raises DatabaseUnavailableError for errors that may pass, and MigrationError for all others.
    """
    try:
        return await migrate(url, admin_url=admin_url, patience_s=0.0)
    except MigrationError as error:
        if passes(error.__cause__):
            raise DatabaseUnavailableError(_reason(error.__cause__)) from error
        raise
    except (asyncpg.ClientConfigurationError, ValueError) as error:
        raise MigrationError(f"not the address of a Postgres: {error}") from error
    except FAILURES as error:
        raise DatabaseUnavailableError(_reason(error)) from error


async def requires_credentials(url: str) -> bool:
    """Whether every request needs a credential here. Raises DatabaseUnavailableError."""
    try:
        connection = await asyncpg.connect(url, timeout=CONNECT_TIMEOUT_S)
        try:
            return bool(await connection.fetchval("select credentials_required from gapless.log"))
        finally:
            await connection.close(timeout=CONNECT_TIMEOUT_S)
    except FAILURES as error:
        raise DatabaseUnavailableError(_reason(error)) from error


def passes(error: BaseException | None) -> bool:
    """Whether an error of the driver or of the connection may be gone at a retry."""
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate).startswith(_PASSING)
    return isinstance(error, FAILURES) and not isinstance(error, ValueError)


def _reason(error: BaseException | None) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT_S:.0f} s"
    return str(error) or type(error).__name__
