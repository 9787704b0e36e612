"""Help texts: examples keep their line breaks, values have plain names, commands list exit codes."""

from __future__ import annotations

import inspect
import re
from typing import Any, cast

from typer.core import TyperCommand, TyperGroup

EXIT_CODES = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the server cannot be reached."


def write_epilog(epilog: str | None, formatter: Any) -> None:
    """Writes the examples as they are, then the exit codes. Typer would join the lines to paragraphs."""
    for text in filter(None, (epilog, EXIT_CODES)):
        formatter.write("\n" + inspect.cleandoc(text) + "\n")


class PlainRows:
    """Names the values of options in plain words, where newer versions of Typer show Python types."""

    NAMES = (
        (r"<(list\[)?str\]?>", "TEXT"),
        (r"<(list\[)?(int|float)( range)?\]?>", "NUMBER"),
        ("<path>", "PATH"),
    )

    def __init__(self, formatter: Any) -> None:
        self._formatter = formatter

    def __getattr__(self, name: str) -> Any:
        return getattr(self._formatter, name)

    def write_dl(self, rows: Any, *arguments: Any, **options: Any) -> None:
        """Writes the rows with plain names. Arguments are shown by their name alone."""
        self._formatter.write_dl([(self._plain(name), text) for name, text in rows], *arguments, **options)

    def _plain(self, name: str) -> str:
        if not name.startswith("-"):
            return name.split(" <")[0]
        for pattern, word in self.NAMES:
            name = re.sub(pattern, word, name)
        return name


class Command(TyperCommand):
    """A command whose epilog is shown unchanged."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, cast(Any, PlainRows(formatter)))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_epilog(self.epilog, formatter)


class Group(TyperGroup):
    """A group of commands in the order of their use. Its epilog is shown unchanged."""

    ORDER = (
        "serve",
        "publish",
        "subscribe",
        "history",
        "channels",
        "consume",
        "subscriptions",
        "dead-letters",
        "scheduled",
        "policies",
        "definitions",
        "import",
    )

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, cast(Any, PlainRows(formatter)))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_epilog(self.epilog, formatter)

    def list_commands(self, ctx: Any) -> list[str]:
        """The commands in the order of their definition. Typer would list groups after commands."""
        first = [name for name in self.ORDER if name in self.commands]
        return first + [name for name in self.commands if name not in first]
