"""`gapless import`: files of messages into the log."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from gapless_cli.failures import Exit, Failure, say
from gapless_cli.options import DEFAULT_URL, Url, seconds

if TYPE_CHECKING:
    from app.cli.importing.importer import Options

EXAMPLES = """
Each line is one message: {"channel": "chat.lobby", "data": …, "key"?, "type"?, "headers"?, "ttl"?,
"sender"?}. What gapless history prints can be imported too, except changes of messages; ids and times are
given anew. To keep the senders of others, a credential must grant moderate.

Examples:

  gapless import chat.jsonl.gz
  gapless import lobby.jsonl --channel chat.lobby      for lines that name no channel
  zcat *.gz | gapless import -
  gapless import chat.jsonl --dry-run                  check every line, publish nothing
  gapless import chat.jsonl --skip-bad                 leave bad lines out

Messages are stored in the order of the file. An import that was interrupted, even by kill -9, goes on when
the same command is run again, and a message is never stored twice: what was sent but not noted is told
apart by the server for 24 hours. A file that was imported is not imported again, except with --again.
"""


def import_(
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="JSON lines, also gzipped; - is stdin.", show_default=False),
    ],
    channel: Annotated[str | None, typer.Option(help="Channel of lines that name none.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad lines out.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check every line; publish nothing.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Import from the start, though it was done.")
    ] = False,
    patience: Annotated[str, typer.Option(help="Wait so long for a server that is away.")] = "120",
    home: Annotated[Path | None, typer.Option(help="Keeps how far each import came.")] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Publish every message of files, once and in order, with progress, across any interruption."""
    from app.cli.importing.importer import Options

    options = Options(channel, skip_bad, again)
    patience_s = seconds(patience, "--patience")
    folder = _folder(home)
    for name in files:
        try:
            if dry_run:
                _check(name, folder, options)
            else:
                _import(name, folder, options, url, patience_s)
        except KeyboardInterrupt:
            say(f"{name}: interrupted; run the same command again (without --again) to go on")
            raise typer.Exit(int(Exit.INTERRUPTED)) from None


def _folder(home: Path | None) -> Path:
    from app.cli.settings import settings_from

    folder = settings_from(home=home).home.absolute() / "imports"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"cannot make {folder}: {error.strerror}; give --home or set GAPLESS_HOME") from None
    return folder


def _import(name: str, folder: Path, options: Options, url: str, patience_s: float) -> None:
    from app.cli.importing.importer import Import
    from app.cli.importing.send import Sender
    from app.cli.importing.source import open_source
    from app.cli.importing.state import StateFile, identity_of

    source = open_source(name, folder)
    sender = Sender(url, patience_s, say)
    try:
        state = StateFile(folder, identity_of(source.digest, options.channel), sender.url)
        typer.echo(Import(source, state, sender, options).run())
    finally:
        sender.close()
        source.close()


def _check(name: str, folder: Path, options: Options) -> None:
    from app.cli.importing.importer import bad_lines, check
    from app.cli.importing.source import open_source

    source = open_source(name, folder)
    try:
        found = check(source, options)
    finally:
        source.close()
    if found.bad:
        text = bad_lines(source.name, found)
        if not options.skip_bad:
            raise Failure(text)
        say(text)
    typer.echo(f"{source.name}: {found.messages:,} messages for {len(found.channels):,} channels, all good")
