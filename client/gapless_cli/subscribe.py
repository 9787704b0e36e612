"""`gapless subscribe`: prints every message as it comes, one JSON line each."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gapless_cli.failures import say, usage
from gapless_cli.interrupts import Interrupts
from gapless_cli.limits import MAX_LAST
from gapless_cli.options import DEFAULT_URL, After, Changes, Keys, Since, Types, Url

if TYPE_CHECKING:
    from gapless import Ephemeral, Gap, Last, Message, Stream

EXAMPLES = """
Examples:

  gapless subscribe chat.lobby                        new messages from now on
  gapless subscribe chat.lobby --last 10              the last ten, then new messages
  gapless subscribe 'chat.*' orders.eu --after 1042   every message after that id
  gapless subscribe 'chat.>' --since 10m --data-only
  gapless subscribe jobs --from earliest --count 1 | jq .data

After a lost connection it goes on behind the last message. Ctrl-C ends it and prints where to resume.
"""


def subscribe(
    channels: Annotated[
        list[str], typer.Argument(metavar="CHANNEL", help="Channels or patterns.", show_default=False)
    ],
    after: After = None,
    last: Annotated[
        int | None, typer.Option(min=1, max=MAX_LAST, help="Begin with the last N of each.")
    ] = None,
    since: Since = None,
    from_: Annotated[Literal["earliest", "latest"] | None, typer.Option("--from", help="Start here.")] = None,
    types: Types = None,
    keys: Keys = None,
    changes: Changes = None,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many messages.")] = None,
    data_only: Annotated[bool, typer.Option("--data-only", help="Print only each message's data.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Follow channels. Messages go to stdout as one JSON object per line, all other output to stderr."""
    from gapless import Last

    starts = [after, None if last is None else Last(last), since, from_]
    given = [start for start in starts if start is not None]
    if len(given) > 1:
        raise usage("give one of --after, --last, --since and --from: they all say where to start")
    follow(
        url,
        channels,
        given[0] if given else None,
        {"types": types, "keys": keys, "changes": changes},
        count=count,
        data_only=data_only,
    )


def follow(
    url: str,
    channels: list[str],
    start: int | str | Last | None,
    filters: dict[str, Any],
    *,
    count: int | None = None,
    data_only: bool = False,
) -> None:
    """Print until `count`, Ctrl-C, SIGTERM, or until stdout's reader leaves. Then print where to resume."""
    from gapless_cli.connection import connected, require_server
    from gapless_cli.output import until_closed, when_reader_leaves

    interrupts = Interrupts()
    tell_log()
    with until_closed(), connected(url) as client:
        require_server(url)
        stream = client.subscribe(*channels, on_gap=_tell_gap, ephemeral=True, start=start, **filters)
        printer = Printer(stream, url, data_only, interrupts)
        gone = when_reader_leaves(stream.close)
        try:
            printer.run(count)
        except KeyboardInterrupt:
            stream.close()
        if printer.cursor is not None and not gone.is_set():
            say(f"resume with --after {printer.cursor}")


class Printer:
    """Prints a stream. `cursor` is the id of the last message that was printed, not merely received."""

    def __init__(
        self, stream: Stream[Message | Gap | Ephemeral], url: str, data_only: bool, interrupts: Interrupts
    ) -> None:
        self._interrupts = interrupts
        self.cursor: int | None = None
        self._stream = stream
        self._url = url
        self._data_only = data_only

    def run(self, count: int | None) -> None:
        """Print up to `count` messages."""
        from gapless import Ephemeral, Gap
        from gapless_cli.output import data_json, ephemeral_json, message_json, write_line

        with self._stream:
            say(f"connected to {self._url}")
            self.cursor = self._stream.cursor
            for item in self._stream:
                if isinstance(item, Gap):
                    continue  # the callback reports it
                if isinstance(item, Ephemeral):
                    say(f"ephemeral {_text(ephemeral_json(item))}")
                    continue
                # A message printed but not counted would be printed again; the reverse would lose it.
                with self._interrupts:
                    write_line(data_json(item.data) if self._data_only else message_json(item))
                    self.cursor = item.id
                if count is not None and (count := count - 1) == 0:
                    return


def _text(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def _tell_gap(gap: Gap) -> None:
    say(f"gap: {gap}")


def tell_log() -> None:
    """Shows the client's log of lost connections and leases on stderr, for the person who watches."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(record.getMessage())

    log = logging.getLogger("gapless")
    log.setLevel(logging.INFO)
    log.addHandler(Handler())
