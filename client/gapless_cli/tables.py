"""Lists: a table for people, JSON lines for programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from gapless_cli.output import moment, until_closed, write_line
from gapless_cli.terminal import printable

T = TypeVar("T")

NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """One column: its title, the text of its cells, and whether it is a number.

    Numbers and the first column are what the next command is given: they stay whole on any terminal.
    """

    title: str
    text: Callable[[T], str]
    number: bool = False


def show(
    items: Iterable[T], json_of: Callable[[T], Any], columns: Sequence[Column[T]], *, as_json: bool = False
) -> None:
    """Writes a table on a terminal unless `as_json`, else one JSON value per line."""
    with until_closed():
        if sys.stdout.isatty() and not as_json:
            _show_table(items, columns)
            return
        for item in items:
            write_line(json_of(item), flush=False)


def show_one(value: dict[str, Any], *, as_json: bool = False) -> None:
    """Writes one thing: a line per member on a terminal unless `as_json`, else JSON on one line."""
    with until_closed():
        if not sys.stdout.isatty() or as_json:
            write_line(value)
            return
        flat = list(_flat(value))
        width = max(len(name) for name, _ in flat)
        for name, text in flat:
            print(f"{name.ljust(width)}  {printable(text)}")


def _flat(value: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    import msgspec

    for name, member in value.items():
        if isinstance(member, dict) and member:
            yield from _flat(member, f"{prefix}{name}.")
        else:
            shown = member if isinstance(member, str) else msgspec.json.encode(member).decode()
            yield prefix + name, shown


def _show_table(items: Iterable[T], columns: Sequence[Column[T]]) -> None:
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    # As plain text: square brackets in a name or an error must not become a style.
    rows = [[Text(printable(column.text(item))) for column in columns] for item in items]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(columns):
        whole = max((row[place].cell_len for row in rows), default=0) if column.number or not place else 0
        justify: Literal["left", "right"] = "right" if column.number else "left"
        table.add_column(column.title, justify=justify, overflow="fold", min_width=whole or None)
    for row in rows:
        table.add_row(*row)
    console = Console()
    # The lines of a terminal that is too narrow even so are wrapped by it, which cuts nothing.
    console.width = max(console.width, Measurement.get(console, console.options, table).minimum)
    console.print(table, soft_wrap=True)


def number(value: int | None) -> str:
    """A number with thousands separators."""
    return NOTHING if value is None else f"{value:,}"


def span(value: float | None) -> str:
    """Seconds in the largest unit that has no remainder."""
    if value is None:
        return NOTHING
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if value >= size and value % size == 0:
            return f"{value / size:g}{unit}"
    return f"{value:g}s"


def when(at: datetime) -> str:
    """A time to the second, in UTC."""
    return moment(at)[:19] + "Z"


def short(text: str | None, characters: int = 60) -> str:
    """The first line of a text, cut if it is too long."""
    first = (text or NOTHING).partition("\n")[0]
    return first if len(first) <= characters else first[: characters - 1] + "…"
