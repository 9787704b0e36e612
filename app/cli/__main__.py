"""`python -m app.cli`."""

from __future__ import annotations

import typer

from app.cli.serve import EXAMPLES, migrate_command, serve

app = typer.Typer(
    name="gapless",
    help="Ordered, durable delivery for chat and events.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(epilog=EXAMPLES)(serve)
app.command("migrate")(migrate_command)


def main() -> None:
    """Run the command line."""
    app(prog_name="gapless")


if __name__ == "__main__":
    main()
