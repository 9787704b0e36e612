"""`gapless serve` and `gapless migrate`: from settings to a running service."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from gapless_cli.failures import Failure, say, usage

from app.cli.preparing import Preparation, metrics_folder, needed
from app.cli.settings import settings_from

if TYPE_CHECKING:
    from app.process.settings import Settings

EXAMPLES = """
Examples:

  gapless serve                            on http://127.0.0.1:8080, everything embedded
  gapless serve --workers 2 --port 9000
  gapless serve --root-path /events        behind a proxy that takes /events off each path
  GAPLESS_DATABASE_URL=postgresql://… GAPLESS_REDIS_URL=redis://… gapless serve

Settings are flags, GAPLESS_* variables, or the keys of gapless.toml; gapless doctor lists them all.
"""
MIGRATE_EXAMPLES = """
Examples:

  GAPLESS_MIGRATE_URL=postgresql://owner@… gapless migrate

serve also does this when it starts. Run migrate alone if the service has no right to change the schema.
"""
Level = Literal["debug", "info", "warning", "error"]
PATIENCE_S = 60.0
"""How long `migrate` waits for an unreachable database. `serve` waits without a limit."""
ASK_AGAIN_S = 0.5


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1].")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on [8080]; 0 picks one.")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes [1].")] = None,
    root_path: Annotated[str | None, typer.Option(help="Prefix that a proxy takes off: /events.")] = None,
    home: Annotated[Path | None, typer.Option(help="Data of the embedded servers.")] = None,
    log_level: Annotated[Level | None, typer.Option(help="How much is logged [info].")] = None,
    database_url: Annotated[str | None, typer.Option(help="Postgres; none: an embedded one.")] = None,
    redis_url: Annotated[str | None, typer.Option(help="Redis; none: an embedded one.")] = None,
) -> None:
    """Run until Ctrl-C or SIGTERM. Flags override GAPLESS_* variables, which override gapless.toml."""
    settings = settings_from(
        host=host,
        port=port,
        workers=workers,
        root_path=root_path,
        home=home,
        log_level=log_level,
        database_url=database_url,
        redis_url=redis_url,
    )
    file = os.environ.get("GAPLESS_CONFIG")
    if file is not None and not Path(file).is_file():
        raise usage(f"GAPLESS_CONFIG names {file}, which is not there")
    _tell_of_unknown_names(settings)
    _check_keys(settings)
    # The owner's credentials are for the migration only: workers do not inherit them.
    os.environ.pop("GAPLESS_MIGRATE_URL", None)
    raise typer.Exit(_run(settings))


def _run(settings: Settings) -> int:
    from app.supervisor.config import SupervisorConfig
    from app.supervisor.supervisor import run
    from db.migrate import MigrationError

    config = SupervisorConfig(
        home=settings.home.absolute(),
        host=settings.host,
        port=settings.port,
        workers=settings.workers,
        database_url=settings.database_url,
        redis_url=settings.redis_url,
        environment=_environment(settings),
    )
    try:
        return run(config, Preparation(settings), needs=needed(settings))
    except MigrationError as error:
        raise Failure(f"{needed(settings)}: {error}") from None


def migrate_command() -> None:
    """Migrate the schema of GAPLESS_MIGRATE_URL (or GAPLESS_DATABASE_URL) to this version, and exit."""
    settings = settings_from()
    url = settings.migrate_url or settings.database_url
    if url is None:
        raise usage("set GAPLESS_DATABASE_URL; an embedded Postgres is migrated by serve")
    typer.echo("\n".join(f"migrated {name}" for name in _migrate(settings, url)) or "nothing to migrate")


def _migrate(settings: Settings, url: str) -> list[str]:
    import asyncio
    import time

    from app.supervisor.waiting import Waiting
    from db.availability import DatabaseUnavailableError, migrate_now
    from db.migrate import MigrationError

    deadline = time.monotonic() + PATIENCE_S
    with Waiting(say, needed(settings)) as waiting:
        while True:
            try:
                names = asyncio.run(migrate_now(url))
            except MigrationError as error:
                raise Failure(f"{needed(settings)}: {error}") from None
            except DatabaseUnavailableError as error:
                if time.monotonic() > deadline:
                    raise Failure(f"{needed(settings)} is away: {error}") from None
                waiting.because(str(error))
            else:
                waiting.arrived()
                return names
            time.sleep(ASK_AGAIN_S)


def _tell_of_unknown_names(settings: Settings) -> None:
    from app.cli.doctor.check import Word
    from app.cli.doctor.settings import check_names

    check = check_names(settings)
    if check.word is not Word.OK:
        say(check.detail)


def _check_keys(settings: Settings) -> None:
    """Workers read the files again."""
    if settings.webhook_keys is not None:
        from app.faces.webhooks.secrets import WebhookKeyError, webhook_secrets

        try:
            webhook_secrets(settings.webhook_keys)
        except WebhookKeyError as error:
            raise usage(f"GAPLESS_WEBHOOK_KEYS: {settings.webhook_keys} {error}") from None
    if settings.jwt_keys is not None:
        from app.http.token_keys import TokenKeyError, load_keys

        try:
            load_keys(settings.jwt_keys)
        except TokenKeyError as error:
            raise usage(f"GAPLESS_JWT_KEYS: {settings.jwt_keys} {error}") from None


def _environment(settings: Settings) -> dict[str, str]:
    """The variables for workers: all settings, whether they came from flags, the file or variables."""
    values: dict[str, Any] = settings.model_dump(mode="json", exclude_none=True, exclude={"migrate_url"})
    environment = {f"GAPLESS_{name.upper()}": str(value) for name, value in values.items()}
    if settings.workers > 1:
        environment["PROMETHEUS_MULTIPROC_DIR"] = os.fspath(metrics_folder(settings))
    return environment
