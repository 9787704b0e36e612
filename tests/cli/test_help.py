"""Help, usage errors and what is said when nothing answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.bench.__main__ import ALL as BENCHES
from load.bench.__main__ import parser_of_options
from tests.cli.conftest import Run

COMMANDS = [
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
    "export",
    "analyze",
    "doctor",
    "backup",
    "restore",
    "psql",
    "bench",
    "token",
    "migrate",
    "version",
    "keys",
    "namespaces",
    "secrets",
]
JOBS = ["export", "analyze"]  # programs of the Spark package, with examples and exit codes of their own
NOWHERE = "http://127.0.0.1:1"


def test_all_commands_are_listed(run: Run) -> None:
    out = run("--help").stdout
    assert [line.split()[0] for line in out.split("Commands:\n")[1].split("\n\n")[0].splitlines()] == COMMANDS


INNER = {
    "channels": ["show", "set", "delete"],
    "subscriptions": ["list", "show", "create", "update", "delete", "seek", "pause", "resume"],
    "dead-letters": ["list", "show", "replay", "purge", "delete"],
    "scheduled": ["list", "show", "cancel", "promote"],
    "policies": ["list", "show", "put", "delete"],
    "definitions": ["export", "import"],
    "keys": ["list", "create", "revoke", "open"],
    "namespaces": ["list", "put", "delete"],
    "secrets": ["list", "rotate"],
}


@pytest.mark.parametrize(
    "command",
    [[name] for name in COMMANDS if name not in JOBS]
    + [[group, one] for group, names in INNER.items() for one in names],
)
def test_help_shows_examples_line_by_line_and_exit_codes(run: Run, command: list[str]) -> None:
    lines = run(*command, "--help").stdout.splitlines()
    examples = lines[lines.index("Examples:") :]
    assert any(line.startswith("  ") and f"gapless {command[0]}" in line for line in examples)
    assert "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 the server cannot be reached." in lines


@pytest.mark.parametrize(
    "command",
    [
        ("publish", "x", "1"),
        ("subscribe", "x"),
        ("history", "x"),
        ("channels",),
        ("channels", "show", "x"),
        ("consume", "x"),
        ("subscriptions",),
        ("dead-letters", "replay", "7"),
        ("scheduled",),
        ("policies",),
        ("definitions", "export"),
    ],
)
def test_a_server_that_is_away_is_exit_code_3(run: Run, command: tuple[str, ...]) -> None:
    err = run(*command, code=3, url=NOWHERE).stderr
    assert err.startswith(f"gapless: no server answers at {NOWHERE}")
    assert len(err.splitlines()) == 1
    assert "idempotency" not in err, "nothing was sent, so nothing can be stored"


@pytest.mark.parametrize("command", JOBS)
def test_help_of_the_jobs_needs_no_spark_and_is_theirs(run: Run, command: str) -> None:
    lines = run(command, "--help").stdout.splitlines()
    assert f"Usage: gapless {command} [OPTIONS]" in lines
    assert any(line.startswith(f"  gapless {command}") for line in lines[lines.index("Examples:") :])


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("publish", "x", "{"), "DATA is not JSON"),
        (("publish", "x", "NaN"), "NaN is no JSON"),
        (("publish", "x", "1", "--ttl", "soon"), "--ttl 'soon' is no duration"),
        (("publish", "x", "1", "--header", "novalue"), "must be name=value"),
        (("publish", "x", "1", "--ephemeral", "--ttl", "5"), "not stored"),
        (("publish", "x", "--lines", "--expected-last-seq", "1"), "not for --lines"),
        (("publish", "x", "--binary", "/nowhere"), "cannot read /nowhere"),
        (("subscribe", "x", "--after", "1", "--last", "2"), "give one of"),
        (("history", "x", "--after", "7", "--since", "1h"), "both say where to start"),
        (("history", "x", "--follow", "--order", "desc"), "--follow goes forward"),
        (("history", "x", "--follow", "--view", "latest"), "--follow prints the log"),
        (("history", "x", "--changed-after", "7"), "goes with --view latest"),
        (("publish", "x", "1", "--target", "7"), "come together"),
        (("publish", "x", "1", "--through", "7"), "come together"),
        (("publish", "x", "1", "--target", "7", "--action", "reply", "--ephemeral"), "one stored message"),
        (("channels", "set", "x"), "say what to set"),
        (("channels", "set", "x", "--max-age", "0.5s"), "whole seconds"),
        (("history", "x", "--url", "ftp://x"), "not the address of a service"),
        (("history", "x", "--url", "127.0.0.1:8080"), "write http://127.0.0.1:8080"),
        (("subscribe", "x", "--url", "localhost:8080"), "write http://localhost:8080"),
        (("consume", "x", "--url", "db.example.org"), "write http://db.example.org"),
        (("import", "/nowhere.jsonl"), "cannot read /nowhere.jsonl"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_one_line(run: Run, command: tuple[str, ...], says: str) -> None:
    err = run(*command, code=2).stderr
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_refusal_is_one_line_with_its_request(run: Run) -> None:
    err = run("publish", "no such name", "1", code=1).stderr
    assert err.startswith("gapless: invalid_request: channel: must be tokens")
    assert "(request " in err
    assert len(err.splitlines()) == 1


def test_version(run: Run) -> None:
    assert run("version").stdout.startswith("gapless 0.")


def test_bad_settings_are_named(run: Run) -> None:
    assert "GAPLESS_PORT" in run("serve", code=2, GAPLESS_PORT="many").stderr
    assert "set GAPLESS_DATABASE_URL" in run("migrate", code=2).stderr


def test_bench_hands_its_options_on(run: Run) -> None:
    assert "unrecognized arguments: --nonsense" in run("bench", "--nonsense", code=2).stderr


def test_help_and_versions_are_where_people_look_for_them(run: Run) -> None:
    for command in ([], ["publish"], ["channels"], ["channels", "show"], ["export"], ["analyze"], ["bench"]):
        assert run(*command, "-h").stdout == run(*command, "--help").stdout != ""
    assert run("--version").stdout == run("version").stdout


def test_the_help_of_bench_names_all_that_may_be_asked_for(run: Run) -> None:
    shown = run("bench", "--help").stdout
    options = {text for action in parser_of_options()._actions for text in action.option_strings}
    assert [name for name in (*BENCHES, *options - {"-h"}) if name not in shown] == []


def test_commands_look_for_the_server_where_serve_listens(run: Run, tmp_path: Path, server_url: str) -> None:
    port = server_url.rpartition(":")[2]
    assert run("channels", url="", GAPLESS_PORT=port).stderr == ""
    assert run("channels", url="", GAPLESS_PORT=port, GAPLESS_HOST="0.0.0.0").stderr == ""
    (tmp_path / "gapless.toml").write_text(f"port = {port}\n")
    assert run("publish", "served.at", "1", url="").stdout != ""
    assert run("channels", "show", "served.at", url="").stdout != ""
    away = run("channels", url="", code=3, GAPLESS_PORT="1", GAPLESS_HOST="localhost")
    assert "http://localhost:1" in away.stderr
    assert "--url" in run("channels", url="", code=2, GAPLESS_PORT="0").stderr


def test_no_start_is_offered_that_the_server_refuses(run: Run) -> None:
    assert "or equal to 1" in run("subscribe", "a", "--last", "0", code=2).stderr
