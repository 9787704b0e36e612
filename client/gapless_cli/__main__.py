"""`python -m gapless_cli`: the commands of a client. The service's own command line adds the others."""

from __future__ import annotations

import signal

import typer

from gapless_cli import channels, history, publish, subscribe
from gapless_cli.failures import end
from gapless_cli.helping import Command, Group
from gapless_cli.queues import consume, dead_letters, definitions, policies, scheduled, subscriptions

EXAMPLES = """
A first minute:

  gapless subscribe chat.lobby                      in one terminal
  gapless publish chat.lobby '{"text": "hello"}'    in another

A queue:

  gapless subscriptions create billing 'orders.>'
  gapless consume billing --exec ./charge

gapless COMMAND --help shows examples of a command. Commands talk to the server at --url or GAPLESS_URL, with
the token in GAPLESS_TOKEN, or in the file GAPLESS_TOKEN_FILE, which is read again at each request: one that
goes on for long takes each new token from there.
"""


def command_line(epilog: str) -> typer.Typer:
    """A command line without commands, with these examples at the end of its help."""
    return typer.Typer(
        name="gapless",
        cls=Group,
        help="Ordered, durable delivery for chat and events.",
        epilog=epilog,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def add_commands(app: typer.Typer) -> None:
    """Adds the commands of a client."""
    app.command(
        "publish",
        cls=Command,
        short_help="Publish a message, or one per line of stdin.",
        epilog=publish.EXAMPLES,
    )(publish.publish)
    app.command(
        "subscribe", cls=Command, short_help="Follow channels, one message a line.", epilog=subscribe.EXAMPLES
    )(subscribe.subscribe)
    app.command("history", cls=Command, short_help="Print a channel's messages.", epilog=history.EXAMPLES)(
        history.history
    )
    app.command(
        "consume",
        cls=Command,
        short_help="Take messages from a subscription and settle them.",
        epilog=consume.EXAMPLES,
    )(consume.consume)
    for name, group in (
        ("channels", channels.app),
        ("subscriptions", subscriptions.app),
        ("dead-letters", dead_letters.app),
        ("scheduled", scheduled.app),
        ("policies", policies.app),
        ("definitions", definitions.app),
    ):
        app.add_typer(group, name=name)


def run(app: typer.Typer) -> None:
    """Run a command line. Every error is reported in one line."""
    # A shell starts background commands with SIGINT ignored, and Python keeps that. But a sender of SIGINT
    # wants the command to end in order.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app(prog_name="gapless")
    except Exception as error:  # noqa: BLE001 (the command's last handler reports every error)
        end(error)


def main() -> None:
    """The command line of a client."""
    app = command_line(EXAMPLES)
    add_commands(app)
    run(app)


if __name__ == "__main__":
    main()
