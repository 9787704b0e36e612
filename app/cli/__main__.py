"""`python -m app.cli`: the command line behind `./gapless`. Commands of a client are in `gapless_cli`."""

from __future__ import annotations

from gapless_cli import options
from gapless_cli.__main__ import add_commands, command_line, run
from gapless_cli.helping import Command

from app.cli import backup, bench, keys, namespaces, secrets, serve, spark, token, version
from app.cli.address import served_at
from app.cli.doctor import command as doctor
from app.cli.importing import command as importing

EXAMPLES = """
A first minute:

  gapless serve                                     in one terminal
  gapless subscribe chat.lobby                      in another
  gapless publish chat.lobby '{"text": "hello"}'    in a third

A queue:

  gapless subscriptions create billing 'orders.>'
  gapless consume billing --exec ./charge

gapless COMMAND --help shows examples of a command. All commands except serve, migrate, doctor, backup,
restore, psql, keys, token, namespaces, secrets, bench, export and analyze talk to the server at --url or
GAPLESS_URL. Without these they use the address of serve from GAPLESS_HOST, GAPLESS_PORT and gapless.toml.
GAPLESS_TOKEN holds their key or token, or GAPLESS_TOKEN_FILE names a file that does. The file is read again
at each request: a command that goes on for long takes each new token from there.
"""

app = command_line(EXAMPLES)
app.callback()(version.root)
app.command(
    "serve", cls=Command, short_help="Run the service until Ctrl-C or SIGTERM.", epilog=serve.EXAMPLES
)(serve.serve)
add_commands(app)
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
    short_help="Count and plot the log's messages, as one HTML page.",
    context_settings=spark.FORWARDED,
)(spark.analyze)
app.command(
    "doctor", cls=Command, short_help="Check the installation and say what to do.", epilog=doctor.EXAMPLES
)(doctor.doctor)
app.command(
    "backup", cls=Command, short_help="Back up the embedded Postgres.", epilog=backup.BACKUP_EXAMPLES
)(backup.backup)
app.command("restore", cls=Command, short_help="Restore a backup.", epilog=backup.RESTORE_EXAMPLES)(
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
    short_help="Measure Gapless against its peers on this machine.",
    epilog=bench.EXAMPLES,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)(bench.bench)
app.add_typer(keys.app, name="keys")
app.add_typer(namespaces.app, name="namespaces")
app.add_typer(secrets.app, name="secrets")
app.command(
    "token", cls=Command, short_help="Make a JWT, for trying and for scripts.", epilog=token.EXAMPLES
)(token.token)
app.command(
    "migrate",
    cls=Command,
    short_help="Bring your own database to this version.",
    epilog=serve.MIGRATE_EXAMPLES,
)(serve.migrate_command)
app.command("version", cls=Command, short_help="Print the versions.", epilog=version.EXAMPLES)(
    version.version
)


def main() -> None:
    """Run the command line of the service and of its clients."""
    options.Local.find = staticmethod(served_at)
    run(app)


if __name__ == "__main__":
    main()
