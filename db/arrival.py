"""A database that is not there yet: what may pass by itself, told apart from what somebody has to mend."""

from __future__ import annotations

import asyncpg

from db.connect import CONNECT_TIMEOUT_S, FAILURES
from db.migrate import MigrationError, migrate

_PASSING = ("08", "53", "57P", "25006", "55P03", "58030")
"""Classes of SQL states: the connection, resources such as a full disk, a server that starts or stops, one
that only reads as long as nobody promotes it, a lock that is held, the machine's input and output."""


class AwayError(Exception):
    """The database cannot be used now. The text says why; asking again later may help."""


async def migrate_now(url: str, admin_url: str | None = None) -> list[str]:
    """Bring the schema to the newest version without waiting for a database; names of what ran.

    Raises AwayError for what may pass, and MigrationError for what does not.
    """
    try:
        return await migrate(url, admin_url=admin_url, patience_s=0.0)
    except MigrationError as error:
        if passes(error.__cause__):
            raise AwayError(_reason(error.__cause__)) from error
        raise
    except (asyncpg.ClientConfigurationError, ValueError) as error:
        raise MigrationError(f"not the address of a Postgres: {error}") from error
    except FAILURES as error:
        raise AwayError(_reason(error)) from error


def passes(error: BaseException | None) -> bool:
    """Whether an error of the driver, or of the way to the database, may be gone when asked again."""
    if isinstance(error, asyncpg.PostgresError):
        return str(error.sqlstate).startswith(_PASSING)
    return isinstance(error, FAILURES) and not isinstance(error, ValueError)


def _reason(error: BaseException | None) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT_S:.0f} s"
    return str(error) or type(error).__name__
