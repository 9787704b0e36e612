"""`gapless subscriptions`, `policies`, `definitions` and `scheduled`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import COMMAND, Run, environment
from tests.patience import PATIENCE_S


def one(run: Run, *command: str, **options: Any) -> dict[str, Any]:
    """The one JSON line a command prints."""
    shown: dict[str, Any] = json.loads(run(*command, **options).stdout)
    return shown


def several(run: Run, *command: str) -> list[dict[str, Any]]:
    """The JSON lines a command prints."""
    return [json.loads(line) for line in run(*command).stdout.splitlines()]


def on_a_terminal(server_url: str, home: Path, *command: str) -> str:
    """What a command shows there."""
    mine, theirs = pty.openpty()
    environ = environment(home, server_url, {"COLUMNS": "160", "TERM": "xterm"})
    with subprocess.Popen(
        [*COMMAND, *command], env=environ, stdin=subprocess.DEVNULL, stdout=theirs
    ) as process:
        assert process.wait(PATIENCE_S) == 0
    os.close(theirs)
    shown = os.read(mine, 65536).decode()
    os.close(mine)
    return shown


def test_create_show_update_delete(run: Run) -> None:
    options = ["--ack-wait", "2m", "--backoff", "1s,1m", "--type", "paid", "--dead-letter", "dead.{channel}"]
    options += ["--changes", "none"]
    made = one(run, "subscriptions", "create", "subs.a", "subs.x.>", "subs.y", "--start", "0", *options)
    assert (made["channels"], made["start"], made["ack_wait"]) == (["subs.x.>", "subs.y"], 0, 120)
    assert (made["backoff"], made["filter"]) == ([1, 60], {"types": ["paid"], "changes": "none"})
    assert made["dead_letter"] == {"channel": "dead.{channel}"}
    assert (made["origins"]["ack_wait"], made["origins"]["max_deliver"]) == ("own", "default")
    again = one(run, "subscriptions", "create", "subs.a", "subs.x.>", "subs.y", "--start", "0", *options)
    assert again["created_at"] == made["created_at"]
    assert "conflict" in run("subscriptions", "create", "subs.a", "subs.z", code=1).stderr
    change = ["--max-deliver", "0", "--unset", "ack-wait", "--unset", "filter", "--channel", "subs.z"]
    changed = one(run, "subscriptions", "update", "subs.a", *change)
    assert (changed["channels"], changed["max_deliver"], changed["ack_wait"]) == (["subs.z"], 0, 30)
    assert "filter" not in changed
    shown = one(run, "subscriptions", "show", "subs.a")
    assert shown["stats"]["lag"] == 0
    assert "needs --yes" in run("subscriptions", "delete", "subs.a", code=2).stderr
    assert "deleted subs.a" in run("subscriptions", "delete", "subs.a", "--yes").stderr
    assert "subscription_not_found" in run("subscriptions", "show", "subs.a", code=1).stderr


def test_list_and_tables(run: Run, server_url: str, tmp_path: Path) -> None:
    for name in ("subs.list.a", "subs.list.b"):
        run("subscriptions", "create", name, "subs.x", "--ack-wait", "90s")
    run("subscriptions", "pause", "subs.list.b")
    listed = several(run, "subscriptions", "list", "--pattern", "subs.list.*")
    assert [(each["name"], each["paused"]) for each in listed] == [
        ("subs.list.a", False),
        ("subs.list.b", True),
    ]
    table = on_a_terminal(server_url, tmp_path, "subscriptions", "list", "--pattern", "subs.list.*")
    assert "subs.list.a" in table
    assert "90s" in table
    assert "paused" in table
    assert "{" not in table
    raw = on_a_terminal(server_url, tmp_path, "subscriptions", "list", "--pattern", "subs.list.a", "--json")
    assert json.loads(raw)["name"] == "subs.list.a"
    lines = on_a_terminal(server_url, tmp_path, "subscriptions", "show", "subs.list.a").splitlines()
    assert any(line.split() == ["ack_wait", "90"] for line in lines)
    assert any(line.split() == ["origins.ack_wait", "own"] for line in lines)
    assert any(line.split() == ["stats.lag", "0"] for line in lines)


def test_seek_pause_resume(run: Run) -> None:
    run("publish", "subs.seek", "1")
    run("subscriptions", "create", "subs.seek", "subs.seek")
    assert one(run, "subscriptions", "show", "subs.seek")["stats"]["lag"] == 0
    tried = one(run, "subscriptions", "seek", "subs.seek", "earliest", "--dry-run")
    assert (tried["before"]["lag"], tried["stats"]["lag"]) == (0, 1)
    assert one(run, "subscriptions", "show", "subs.seek")["stats"]["lag"] == 0
    run("subscriptions", "seek", "subs.seek", "earliest")
    assert one(run, "subscriptions", "show", "subs.seek")["stats"]["lag"] == 1
    run("subscriptions", "seek", "subs.seek", "1h")
    assert one(run, "subscriptions", "show", "subs.seek")["stats"]["lag"] == 1
    assert one(run, "subscriptions", "pause", "subs.seek")["paused"]
    assert not one(run, "subscriptions", "resume", "subs.seek")["paused"]
    assert "invalid_request" in run("subscriptions", "seek", "subs.seek", "sometime", code=1).stderr


def test_a_secret_comes_from_a_file_or_a_variable_and_is_not_shown(run: Run, tmp_path: Path) -> None:
    secret = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    (tmp_path / "secret").write_text(secret + "\n")
    push = ["--push-url", "https://example.com/hook"]
    by_file = run("subscriptions", "create", "subs.push.a", "x", *push, "--push-secret-file", "secret")
    by_variable = run("subscriptions", "create", "subs.push.b", "x", *push, GAPLESS_PUSH_SECRET=secret)
    for made in (by_file, by_variable):
        assert json.loads(made.stdout)["push"] == {"url": "https://example.com/hook"}
        assert "whsec" not in made.stdout + made.stderr
    run("subscriptions", "create", "subs.push.c", "x", *push, code=1)
    for name in ("subs.push.a", "subs.push.b"):
        run("subscriptions", "delete", name, "--yes")


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("update", "x"), "say what to change"),
        (("update", "x", "--unset", "colour"), "is no setting: ack_wait, max_deliver"),
        (("update", "x", "--unset", "ack-wait", "--ack-wait", "5"), "set and unset at once"),
        (("create", "x", "y", "--ack-wait", "soon"), "--ack-wait 'soon' is no duration"),
        (("create", "x", "y", "--backoff", "1s,,2s"), "--backoff '' is no duration"),
        (("create", "x", "y", "--push-secret-file", "f"), "goes with --push-url"),
        (("create", "x", "y", "--push-url", "u", "--push-secret-file", "/nowhere"), "cannot read /nowhere"),
        (("show", ".."), "not a name"),
    ],
)
def test_wrong_usage_is_exit_code_2_and_one_line(run: Run, command: tuple[str, ...], says: str) -> None:
    err = run("subscriptions", *command, code=2).stderr
    assert says in err
    assert len(err.splitlines()) == 1


def test_policies(run: Run, server_url: str, tmp_path: Path) -> None:
    about = ["--pattern", "subs.policed", "--applies-to", "subscriptions"]
    put = one(run, "policies", "put", "cli.slow", *about, "--priority", "3", '{"ack_wait": 600}')
    assert put == {
        "name": "cli.slow", "pattern": "subs.policed", "applies_to": "subscriptions", "priority": 3,
        "definition": {"ack_wait": 600}, "etag": put["etag"],
    }  # fmt: skip
    assert one(run, "policies", "show", "cli.slow") == put
    del put["etag"]
    assert put in several(run, "policies")
    table = on_a_terminal(server_url, tmp_path, "policies", "list")
    assert "cli.slow" in table
    assert '{"ack_wait":600}' in table
    made = one(run, "subscriptions", "create", "subs.policed", "x")
    assert (made["ack_wait"], made["origins"]["ack_wait"]) == (600, "policy:cli.slow")
    assert one(run, "policies", "put", "cli.slow", *about, input='{"ack_wait": 5}')["definition"] == {
        "ack_wait": 5
    }
    assert "not JSON" in run("policies", "put", "cli.slow", *about, "{", code=2).stderr
    assert "must be an object" in run("policies", "put", "cli.slow", *about, "[]", code=2).stderr
    assert "invalid_request" in run("policies", "put", "cli.slow", *about, '{"colour": 1}', code=1).stderr
    assert "needs --yes" in run("policies", "delete", "cli.slow", code=2).stderr
    run("policies", "delete", "cli.slow", "--yes")
    assert "not_found" in run("policies", "show", "cli.slow", code=1).stderr


def test_what_a_policy_gives_a_channel_does_not_become_its_own(run: Run) -> None:
    about = ["--pattern", "subs.kept", "--applies-to", "channels"]
    run("policies", "put", "cli.kept", *about, '{"retention": {"max_age": 3600}, "message_ttl": 60}')
    run("publish", "subs.kept", "1")
    changed = one(run, "channels", "set", "subs.kept", "--max-messages", "10")
    assert changed["retention"] == {"max_age": 3600, "max_messages": 10}
    assert changed["origins"]["max_messages"] == "own"
    assert changed["origins"]["max_age"] == changed["origins"]["message_ttl"] == "policy:cli.kept"
    run("policies", "delete", "cli.kept", "--yes")
    shown = one(run, "channels", "show", "subs.kept")
    assert (shown["retention"], "message_ttl" in shown) == ({"max_messages": 10}, False)


def test_definitions(run: Run, tmp_path: Path) -> None:
    run("subscriptions", "create", "subs.defined", "x", "--ack-wait", "3s", "--message-ttl", "1h")
    exported = run("definitions", "export").stdout
    document = json.loads(exported)
    assert exported.count("\n") > len(document["subscriptions"])
    mine = next(each for each in document["subscriptions"] if each["name"] == "subs.defined")
    wanted = [{**mine, "ack_wait": 4}, {"name": "subs.new", "channels": ["y"]}]
    del wanted[0]["message_ttl"]
    (tmp_path / "wanted.json").write_text(json.dumps({"version": 1, "subscriptions": wanted}))
    tried = run("definitions", "import", "wanted.json", "--dry-run").stdout.splitlines()
    assert "~ subscription subs.defined" in tried
    assert "    ack_wait: 3 -> 4" in tried
    assert "+ subscription subs.new" in tried
    assert '    channels: ["y"]' in tried
    assert tried[-1] == "1 would be created, 1 would be updated, 0 unchanged"
    assert one(run, "subscriptions", "show", "subs.defined")["ack_wait"] == 3
    done = one(run, "definitions", "import", "wanted.json", "--json")
    assert (done["dry_run"], done["created"]) == (False, ["subscription:subs.new"])
    assert {each["name"] for each in done["diff"]} == {"subs.defined", "subs.new"}
    again = run("definitions", "import", "-", input=(tmp_path / "wanted.json").read_text()).stdout
    assert again == "0 created, 0 updated, 2 unchanged\n"
    assert "cannot read nowhere" in run("definitions", "import", "nowhere", code=2).stderr
    assert "holds no document" in run("definitions", "import", "-", input="[]", code=2).stderr
    assert (
        "invalid_request" in run("definitions", "import", "-", input='{"version": 1, "x": 1}', code=1).stderr
    )


def test_messages_for_later(run: Run, server_url: str, tmp_path: Path) -> None:
    first = one(run, "publish", "subs.later", '{"n": 1}', "--delay", "1h", "--key", "k", "--sender", "ann")
    assert set(first) == {"scheduled_id", "channel", "deliver_at"}
    second = one(run, "publish", "subs.later", "2", "--deliver-at", "2035-01-01T00:00:00Z")
    assert second["deliver_at"] == "2035-01-01T00:00:00.000000Z"
    ids = [each["scheduled_id"] for each in (first, second)]
    listed = several(run, "scheduled", "list", "--channel", "subs.later")
    assert [each["scheduled_id"] for each in listed] == ids
    assert (listed[0]["data"], listed[0]["key"], listed[0]["sender"]) == ({"n": 1}, "k", "ann")
    assert one(run, "scheduled", "show", ids[0]) == listed[0]
    assert "2035-01-01T00:00:00Z" in on_a_terminal(server_url, tmp_path, "scheduled")
    promoted = one(run, "scheduled", "promote", ids[0])
    assert (promoted["channel"], promoted["seq"]) == ("subs.later", 1)
    assert f"cancelled {ids[1]}" in run("scheduled", "cancel", ids[1]).stderr
    assert "scheduled message not found" in run("scheduled", "cancel", ids[1], code=1).stderr
    assert set(one(run, "publish", "subs.later", "3", "--delay", "0")) == set(first)
    for odd in (
        ["--delay", "1", "--deliver-at", "x"],
        ["--delay", "1", "--ephemeral"],
        ["--delay", "1", "--lines"],
    ):
        run("publish", "subs.later", *odd, code=2)


def test_changes_of_what_was_seen(run: Run) -> None:
    seen = json.loads(run("subscriptions", "create", "tagged", "tagged").stdout)["etag"]
    assert json.loads(run("subscriptions", "show", "tagged").stdout)["etag"] == seen
    listed = run("subscriptions", "list", "--pattern", "tagged").stdout
    assert "etag" not in json.loads(listed), "a list has none"
    paused = json.loads(run("subscriptions", "pause", "tagged", "--if-match", seen).stdout)["etag"]
    assert paused != seen
    for words in (
        ("create", "tagged", "other"),
        ("update", "tagged", "--ack-wait", "5s"),
        ("pause", "tagged"),
        ("resume", "tagged"),
        ("seek", "tagged", "latest"),
        ("seek", "tagged", "latest", "--dry-run"),
        ("purge", "tagged", "--yes"),
        ("delete", "tagged", "--yes"),
    ):
        refused = run("subscriptions", *words, "--if-match", seen, code=1)
        assert "precondition_failed" in refused.stderr, words
    for words in (("seek", "tagged", "latest"), ("purge", "tagged", "--yes")):
        run("subscriptions", *words, "--if-match", paused.strip('"'))
    assert json.loads(run("subscriptions", "resume", "tagged", "--if-match", paused).stdout)["etag"] == seen
    run("subscriptions", "delete", "tagged", "--yes", "--if-match", "*")


def test_policies_and_definitions_of_what_was_seen(run: Run, tmp_path: Path) -> None:
    put = ("policies", "put", "tagged", "--pattern", "none.>", "--applies-to", "subscriptions")
    seen = json.loads(run(*put, '{"ack_wait": 5}').stdout)["etag"]
    assert json.loads(run("policies", "show", "tagged").stdout)["etag"] == seen
    exported = run("definitions", "export")
    whole = exported.stderr.split()[-1]
    file = tmp_path / "all.json"
    file.write_text(exported.stdout)
    run(*put, '{"ack_wait": 6}', "--if-match", seen)
    for words in (
        (*put, '{"ack_wait": 7}', "--if-match", seen),
        ("policies", "delete", "tagged", "--yes", "--if-match", seen),
        ("definitions", "import", str(file), "--if-match", whole),
    ):
        assert "precondition_failed" in run(*words, code=1).stderr, words
    newer = run("definitions", "export").stderr.split()[-1]
    run("definitions", "import", str(file), "--if-match", newer)
    run("policies", "delete", "tagged", "--yes", "--if-match", seen)
