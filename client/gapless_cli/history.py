"""`gapless history`: prints a channel's messages."""

from __future__ import annotations

import signal
from typing import Annotated, Any, Literal

import typer

from gapless_cli.failures import usage
from gapless_cli.options import DEFAULT_URL, After, Changes, Keys, Since, Types, Url

EXAMPLES = """
Examples:

  gapless history chat.lobby                          everything, oldest first
  gapless history chat.lobby --order desc --limit 10  the ten newest
  gapless history orders.eu --since 1d --key user-7
  gapless history chat.lobby --after 1042 --limit 100 a page; its last id is the --after of the next
  gapless history chat.lobby > lobby.jsonl            gapless import reads messages back
  gapless history chat.lobby --follow                 the history, then new messages
  gapless history chat.lobby --view latest            originals only, as they are after all changes
"""


def history(
    channel: Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel.", show_default=False)],
    after: After = None,
    before: Annotated[int | None, typer.Option(min=0, help="Only messages before this id.")] = None,
    since: Since = None,
    types: Types = None,
    keys: Keys = None,
    changes: Changes = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many [all].")] = None,
    order: Annotated[Literal["asc", "desc"], typer.Option(help="Oldest or newest first.")] = "asc",
    view: Annotated[
        Literal["log", "latest"], typer.Option(help="As they came, or as they are after all changes.")
    ] = "log",
    changed_after: Annotated[
        int | None, typer.Option(min=0, help="Of the latest view: only what changed after this id.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new messages.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Print a channel's messages, one JSON object per line, in constant memory."""
    if changed_after is not None and view != "latest":
        raise usage("--changed-after goes with --view latest")
    if after is not None and since is not None:
        raise usage("give one of --after and --since: they both say where to start")
    start = since if after is None else after
    filters: dict[str, Any] = {"types": types, "keys": keys, "changes": changes}
    if follow:
        if before is not None or order == "desc":
            raise usage("--follow goes forward without an end: leave --before and --order desc out")
        if view == "latest":
            raise usage("--follow prints the log: leave --view latest out")
        _follow(url, channel, "earliest" if start is None else start, filters, limit)
        return
    _print(
        url,
        channel,
        limit,
        start=start,
        before=before,
        order=order,
        view=view,
        changed_after=changed_after,
        **filters,
    )


def _print(url: str, channel: str, limit: int | None, **options: object) -> None:
    from gapless_cli.connection import connected
    from gapless_cli.output import message_json, until_closed, write_line

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with until_closed(), connected(url) as client:
        for message in client.iter_history(channel, limit=limit, **options):  # type: ignore[arg-type]
            write_line(message_json(message), flush=False)


def _follow(url: str, channel: str, start: int | str, filters: dict[str, Any], limit: int | None) -> None:
    from gapless_cli.subscribe import follow

    follow(url, [channel], start, filters, count=limit)
