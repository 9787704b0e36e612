"""`python -m app.cli`: what `./gapless` hands over to."""

from __future__ import annotations

import signal

import typer

from app.cli import backup, bench, channels, history, publish, serve, spark, subscribe, version
from app.cli.doctor import command as doctor
from app.cli.failures import end
from app.cli.helping import Command, Group
from app.cli.importing import command as importing
from app.cli.queues import consume, dead_letters, definitions, policies, scheduled, subscriptions

EXAMPLES = """
A first minute:

  gapless serve                                     in one terminal
  gapless subscribe chat.lobby                      in another
  gapless publish chat.lobby '{"text": "hello"}'    in a third

And a queue:

  gapless subscriptions create billing 'orders.>'
  gapless consume billing --exec ./charge

gapless COMMAND --help shows examples of each. Commands other than serve, migrate, doctor, backup,
restore, psql, bench, export and analyze talk to the server at --url or GAPLESS_URL, else where serve listens
by GAPLESS_HOST, GAPLESS_PORT and gapless.toml, with the token in GAPLESS_TOKEN if there is one.
"""

app = typer.Typer(
    name="gapless",
    cls=Group,
    help="Ordered, durable delivery for chat and events.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback()(version.root)
app.command(
    "serve", cls=Command, short_help="Run the service until Ctrl-C or SIGTERM.", epilog=serve.EXAMPLES
)(serve.serve)
app.command(
    "publish",
    cls=Command,
    short_help="Publish a message, or one for each line of stdin.",
    epilog=publish.EXAMPLES,
)(publish.publish)
app.command(
    "subscribe", cls=Command, short_help="Follow channels, one message a line.", epilog=subscribe.EXAMPLES
)(subscribe.subscribe)
app.command("history", cls=Command, short_help="Print what a channel holds.", epilog=history.EXAMPLES)(
    history.history
)
app.add_typer(channels.app, name="channels")
app.command(
    "consume",
    cls=Command,
    short_help="Take messages from a subscription and settle them.",
    epilog=consume.EXAMPLES,
)(consume.consume)
app.add_typer(subscriptions.app, name="subscriptions")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(scheduled.app, name="scheduled")
app.add_typer(policies.app, name="policies")
app.add_typer(definitions.app, name="definitions")
app.command(
    "import",
    cls=Command,
    short_help="Publish files of messages, once and in order.",
    epilog=importing.EXAMPLES,
)(importing.import_)
app.command(
    "export",
    cls=Command,
    short_help="Write the log as Parquet, Delta or Iceberg, exactly once.",
    context_settings=spark.FORWARDED,
)(spark.export)
app.command(
    "analyze",
    cls=Command,
    short_help="Count and plot what the log holds, as one HTML page.",
    context_settings=spark.FORWARDED,
)(spark.analyze)
app.command(
    "doctor", cls=Command, short_help="Say what is used, what is wrong, what to do.", epilog=doctor.EXAMPLES
)(doctor.doctor)
app.command(
    "backup", cls=Command, short_help="Back up the embedded Postgres.", epilog=backup.BACKUP_EXAMPLES
)(backup.backup)
app.command("restore", cls=Command, short_help="Restore such a backup.", epilog=backup.RESTORE_EXAMPLES)(
    backup.restore
)
app.command(
    "psql",
    cls=Command,
    short_help="Open psql on the database.",
    epilog=backup.PSQL_EXAMPLES,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)(backup.psql)
app.command(
    "bench",
    cls=Command,
    short_help="Measure it against its peers on this machine.",
    epilog=bench.EXAMPLES,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)(bench.bench)
app.command(
    "migrate",
    cls=Command,
    short_help="Bring a database of yours to this version.",
    epilog=serve.MIGRATE_EXAMPLES,
)(serve.migrate_command)
app.command("version", cls=Command, short_help="Print the versions.", epilog=version.EXAMPLES)(
    version.version
)


def main() -> None:
    """Run the command line. Whatever goes wrong is told in one line."""
    # A shell starts what goes to its background with Ctrl-C ignored, and Python leaves it so. But whoever
    # sends that signal to one of these commands wants it to end in order.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        app(prog_name="gapless")
    except Exception as error:  # noqa: BLE001 (the last resort of a command: said in one line, never hidden)
        end(error)


if __name__ == "__main__":
    main()
