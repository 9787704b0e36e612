"""Help texts: examples keep their line breaks, and every command tells its exit codes."""

from __future__ import annotations

import inspect
from typing import Any

from typer.core import TyperCommand, TyperGroup

EXIT_CODES = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the server cannot be reached."


def write_epilog(epilog: str | None, formatter: Any) -> None:
    """The examples as they stand, then the exit codes. The framework would join the lines to paragraphs."""
    for text in filter(None, (epilog, EXIT_CODES)):
        formatter.write("\n" + inspect.cleandoc(text) + "\n")


class Command(TyperCommand):
    """A command whose epilog is shown as it is written."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_epilog(self.epilog, formatter)


class Group(TyperGroup):
    """A group of commands, in the order of their use, with its epilog as it is written."""

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

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_epilog(self.epilog, formatter)

    def list_commands(self, ctx: Any) -> list[str]:
        """The framework would list groups after commands."""
        first = [name for name in self.ORDER if name in self.commands]
        return first + [name for name in self.commands if name not in first]
