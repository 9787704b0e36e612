"""Commands that work on the database of an installation, whether its service runs or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer
from gapless_cli.failures import Failure

from app.cli.settings import settings_from

if TYPE_CHECKING:
    from app.process.settings import Settings
    from db.connect import Pool

T = TypeVar("T")
Home = Annotated[Path | None, typer.Option(help="Data of the embedded servers.")]
TIMEOUT_S: Final = 30.0


def on_database(home: Path | None, act: Callable[[Pool], Awaitable[T]], *, as_owner: bool = False) -> T:
    """Runs `act` with connections that have the rights of the service, or those of the owner of the schema.
    An embedded Postgres that does not run, or has no data yet, is started for it. Raises `Failure`."""
    from db.connect import SERVICE_ROLE, DatabaseConfig, Pool
    from subscriptions.domain.errors import GaplessError

    async def run(url: str) -> T:
        config = DatabaseConfig(url, None if as_owner else SERVICE_ROLE, TIMEOUT_S)
        pool = Pool(config, application="command", size=1)
        try:
            await _require_schema(pool)
            return await act(pool)
        finally:
            await pool.close()

    with _served(settings_from(home=home), as_owner) as url:
        try:
            return asyncio.run(run(url))
        except GaplessError as error:
            raise Failure(error.detail) from None


async def _require_schema(pool: Pool) -> None:
    from db.maintenance import Maintenance
    from db.migrate import migrations

    version, needed = await Maintenance(pool).schema_version(), len(migrations())
    if version != needed:
        raise Failure(
            f"the schema is at version {version}, this program needs {needed}: run gapless migrate, or start"
            " gapless serve"
        )


@contextmanager
def _served(settings: Settings, as_owner: bool) -> Iterator[str]:
    """The URL of a database that answers, for the service or for the owner of the schema."""
    if settings.database_url is not None:
        yield (settings.migrate_url if as_owner else None) or settings.database_url
        return
    from app.embedded import EmbeddedError
    from app.embedded.backup import at_hand
    from db.availability import DatabaseUnavailableError, migrate_now
    from db.migrate import MigrationError

    try:
        with at_hand(settings.home.absolute(), make=True) as server:
            if server.pid is not None:  # It is ours, so no service of another version uses it.
                asyncio.run(migrate_now(server.owner_url, server.admin_url))
            yield server.owner_url if as_owner else server.service_url
    except (EmbeddedError, MigrationError, DatabaseUnavailableError) as error:
        raise Failure(str(error)) from None
