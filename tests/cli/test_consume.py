"""`gapless consume` and `gapless dead-letters`."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.conftest import Run, Start, free_port
from tests.cli.test_subscriptions import on_a_terminal, one, several
from tests.conftest import Serve
from tests.patience import PATIENCE_S, next_line, wait_until


def subscribed(run: Run, name: str, *data: Any, options: tuple[str, ...] = ()) -> str:
    """A subscription to a channel of its name, with these messages in it."""
    run("subscriptions", "create", name, name, "--start", "earliest", "--backoff", "0", *options)
    if data:
        run("publish", name, "--lines", input="\n".join(json.dumps(each) for each in data))
    return name


def stats(run: Run, name: str) -> dict[str, Any]:
    found: dict[str, Any] = one(run, "subscriptions", "show", name)["stats"]
    return found


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def first_line(process: subprocess.Popen[str]) -> Any:
    return json.loads(next_line(process, process.stdout))


def test_what_is_printed_is_acked(run: Run) -> None:
    name = subscribed(run, "con.print", {"n": 1}, {"n": 2}, {"n": 3})
    done = run("consume", name, "--count", "2")
    printed = lines(done.stdout)
    assert [(each["message"]["data"], each["attempt"]) for each in printed] == [({"n": 1}, 1), ({"n": 2}, 1)]
    assert set(printed[0]) == {"receipt", "attempt", "message"}
    assert "gapless: 2 acked" in done.stderr
    assert stats(run, name)["acked"] == 2
    assert lines(run("consume", name, "--count", "1", "--data-only").stdout) == [{"n": 3}]


def test_what_is_settled_when_it_is_handed_out(start: Start, run: Run) -> None:
    name = subscribed(run, "con.auto", 1, 2, 3)
    done = run("consume", name, "--auto-ack", "--count", "2")
    printed = lines(done.stdout)
    assert [each["message"]["data"] for each in printed] == [1, 2]
    assert set(printed[0]) == {"attempt", "message"}
    assert "gapless: 2 acked" in done.stderr
    counts = stats(run, name)
    assert (counts["acked"], counts["in_flight"], counts["lag"]) == (2, 0, 1), "nothing was read ahead"
    with start("consume", name, "--auto-ack", "--data-only") as process:
        assert first_line(process) == 3
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, "")
    assert "gapless: 1 acked" in err
    run("publish", name, "4")
    assert lines(run("consume", name, "--count", "1", "--data-only").stdout) == [4]
    assert "subscription_not_found" in run("consume", "con.nobody", "--auto-ack", code=1).stderr


def test_looking_costs_nothing(run: Run) -> None:
    name = subscribed(run, "con.look", 1, 2, 3, options=("--max-deliver", "1"))
    for _ in range(6):
        done = run("consume", name, "--no-ack", "--count", "2", "--data-only")
        assert lines(done.stdout) == [1, 2]
        assert done.stderr.splitlines()[-1] == "gapless: 2 looked at"
    seen = lines(run("consume", name, "--no-ack").stdout)
    assert [(each["state"], each["attempt"], each["message"]["data"]) for each in seen] == [
        ("ready", 0, data) for data in (1, 2, 3)
    ]
    assert (stats(run, name)["acked"], stats(run, name)["dead_letters"]) == (0, 0)
    assert [each["attempt"] for each in lines(run("consume", name, "--count", "3").stdout)] == [1, 1, 1]
    assert run("consume", name, "--no-ack").stderr.splitlines()[-1] == "gapless: nothing was there"
    assert "subscription_not_found" in run("consume", "con.nobody", "--no-ack", code=1).stderr


def test_each_state_is_shown(run: Run, server_url: str, tmp_path: Path) -> None:
    name = subscribed(run, "con.states", 1, options=("--ack-wait", "1h"))
    run("publish", name, "2", "--key", "k")
    run("publish", name, "3", "--key", "k")
    pull = f"{server_url}/v1/subscriptions/{name}/pull"
    httpx.post(pull, json={"max": 3}, timeout=PATIENCE_S).raise_for_status()
    run("publish", name, "4")
    look = ["subscriptions", "look", name]
    assert [each["state"] for each in several(run, *look)] == ["leased", "leased", "waiting", "ready"]
    one_, two = several(run, *look, "--state", "leased")
    assert (one_["member"], one_["attempt"], "deadline" in one_) == ("pull", 1, True)
    (waiting,) = several(run, *look, "--state", "waiting", "--limit", "5")
    assert waiting["waits_for"] == two["message"]["id"]
    assert several(run, *look, "--state", "delayed") == []
    assert len(several(run, *look, "--limit", "1")) == 1
    table = on_a_terminal(server_url, tmp_path, *look)
    assert f"waits for {waiting['waits_for']}" in table
    assert "ready" in table


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_cleanly(start: Start, run: Run, how: signal.Signals) -> None:
    name = subscribed(run, f"con.end{how.value}", 1)
    with start("consume", name) as process:
        assert first_line(process)["message"]["data"] == 1
        process.send_signal(how)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (0, "")
    assert "Traceback" not in err
    assert stats(run, name)["acked"] == 1


def test_head_ends_it(start: Start, run: Run) -> None:
    name = subscribed(run, "con.head", 1)
    with start("consume", name) as process:
        first_line(process)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 0


def test_a_command_decides_by_its_exit_code(run: Run, tmp_path: Path) -> None:
    name = subscribed(run, "con.exec", {"n": 1}, {"n": 2}, options=("--max-deliver", "2"))
    script = tmp_path / "handle.sh"
    script.write_text(
        """cat > message; cat message >> seen
echo "$GAPLESS_SUBSCRIPTION $GAPLESS_MESSAGE_CHANNEL $GAPLESS_ATTEMPT"
if grep -q '"n":2' message; then echo first >&2; echo no such order >&2; exit 3; fi
"""
    )
    done = run("consume", name, "--exec", "sh handle.sh", "--count", "3")
    assert done.stdout.splitlines() == [f"{name} {name} 1", f"{name} {name} 1", f"{name} {name} 2"]
    seen = lines((tmp_path / "seen").read_text())
    assert [each["data"] for each in seen] == [{"n": 1}, {"n": 2}, {"n": 2}]
    assert "no such order" in done.stderr
    assert "attempt 2: exit code 3: no such order" in done.stderr
    assert "gapless: 1 acked, 2 nacked" in done.stderr
    (dead,) = several(run, "dead-letters", "list", "--subscription", name)
    assert (dead["reason"], dead["attempts"]) == ("max_deliver", 2)
    assert dead["last_error"] == "CommandFailed: exit code 3: no such order"


def test_commands_that_do_not_read_and_bytes(run: Run, tmp_path: Path) -> None:
    name = subscribed(run, "con.bytes", "x" * 300_000)
    run("consume", name, "--exec", "true", "--count", "1")
    (tmp_path / "file.bin").write_bytes(b"\x00\xff")
    run("publish", name, "--binary", "file.bin")
    run("consume", name, "--exec", "cat > got", "--data-only", "--count", "1")
    assert (tmp_path / "got").read_bytes() == b"\x00\xff"
    assert stats(run, name)["acked"] == 2


def test_commands_side_by_side(run: Run, tmp_path: Path) -> None:
    name = subscribed(run, "con.side", *range(4), options=("--ordering", "none"))
    # Each waits until all four are there.
    command = "touch here.$GAPLESS_MESSAGE_ID; until [ $(ls here.* | wc -l) = 4 ]; do sleep 0.01; done"
    done = run("consume", name, "--exec", command, "--concurrency", "4", "--count", "4")
    assert "4 acked" in done.stderr
    assert len(list(tmp_path.glob("here.*"))) == 4


@pytest.mark.realtime("the service ends a lease of one second by the clock, unless it is extended")
def test_a_long_command_keeps_its_lease(run: Run) -> None:
    name = subscribed(run, "con.long", 1, options=("--ack-wait", "1s"))
    done = run("consume", name, "--exec", "sleep 2.2", "--count", "1")
    assert "gapless: 1 acked" in done.stderr
    assert stats(run, name)["redelivered"] == 0


def test_ctrl_c_waits_for_the_command_once(start: Start, run: Run, tmp_path: Path) -> None:
    name = subscribed(run, "con.ctrl", 1, 2)
    command = "echo begun; until [ -e go ]; do sleep 0.01; done"
    with start("consume", name, "--exec", command) as process:
        assert next_line(process, process.stdout) == "begun\n"
        process.send_signal(signal.SIGINT)
        assert "waiting for the commands under way" in next_line(process, process.stderr)
        (tmp_path / "go").touch()
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "1 acked" in err
    assert stats(run, name)["acked"] == 1


def test_a_second_ctrl_c_ends_the_command_and_releases_the_message(start: Start, run: Run) -> None:
    name = subscribed(run, "con.twice", 1, options=("--ack-wait", "10m"))
    with start("consume", name, "--exec", "echo begun; sleep 600") as process:
        assert next_line(process, process.stdout) == "begun\n"
        process.send_signal(signal.SIGINT)
        assert "waiting" in next_line(process, process.stderr)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "1 released" in err
    assert [each["attempt"] for each in lines(run("consume", name, "--count", "1").stdout)] == [1]


def test_a_restarted_server_is_consumed_on(start: Start, serve: Serve) -> None:
    service = serve("--port", (port := free_port()))
    put = {"channels": ["con.restart"], "start": "earliest"}
    address = f"{service.url}/v1/subscriptions/con.restart"
    httpx.put(address, json=put, timeout=PATIENCE_S).raise_for_status()

    def publish(url: str, data: int) -> None:
        messages = f"{url}/v1/channels/con.restart/messages"
        httpx.post(messages, json={"data": data}, timeout=PATIENCE_S).raise_for_status()

    publish(service.url, 1)
    with start("consume", "con.restart", "--data-only", "--count", "2", url=service.url) as process:
        assert first_line(process) == 1
        # Its ack may still be under way: then it comes again, rightly.
        wait_until(lambda: httpx.get(address, timeout=PATIENCE_S).json()["stats"]["acked"])
        service.kill()
        service = serve("--port", port)
        publish(service.url, 2)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert lines(out) == [2]
    assert "gapless: stream of con.restart lost" in err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--concurrency", "2"], "--concurrency is for --exec"),
        (["--exec", "true", "--no-ack"], "--no-ack is for looking"),
        (["--no-ack", "--prefetch", "5"], "--no-ack is for looking"),
        (["--auto-ack", "--no-ack"], "--auto-ack is for printing"),
        (["--auto-ack", "--exec", "true"], "--auto-ack is for printing"),
        (["--auto-ack", "--prefetch", "5"], "--auto-ack takes one message at a time"),
    ],
)
def test_wrong_usage(run: Run, options: list[str], says: str) -> None:
    assert says in run("consume", "x", *options, code=2).stderr


def test_a_subscription_that_is_not_there(run: Run) -> None:
    err = run("consume", "con.nothing", code=1).stderr
    assert "subscription_not_found" in err
    assert len(err.splitlines()) == 1
    assert "subscription_not_found" in run("consume", "con.nothing", "--exec", "true", code=1).stderr


def test_dead_letters(run: Run, server_url: str, tmp_path: Path) -> None:
    name = subscribed(run, "con.dead", 1, 2, 3, options=("--max-deliver", "1", "--ordering", "none"))
    run("consume", name, "--exec", "echo [boom] >&2; false", "--count", "3")
    listed = several(run, "dead-letters", "list", "--subscription", name)
    assert [each["message"]["data"] for each in listed] == [1, 2, 3]
    assert several(run, "dead-letters", "list", "--subscription", name, "--limit", "1") == listed[:1]
    assert several(run, "dead-letters", "list", "--channel", name, "--reason", "expired") == []
    ids = [str(each["id"]) for each in listed]
    assert one(run, "dead-letters", "show", ids[0]) == listed[0]
    table = on_a_terminal(server_url, tmp_path, "dead-letters", "list", "--subscription", name)
    assert "[boom]" in table
    assert "max_deliver" in table
    shown = on_a_terminal(server_url, tmp_path, "dead-letters", "show", ids[0])
    assert "CommandFailed: exit code 1: [boom]" in shown
    replayed = one(run, "dead-letters", "replay", ids[0])
    assert replayed == {"id": int(ids[0]), "subscription": name, "message_id": listed[0]["message"]["id"]}
    gone = run("dead-letters", "replay", ids[0], code=1).stderr
    assert f"dead letter entry not found: {ids[0]}" in gone
    assert "needs --yes" in run("dead-letters", "delete", ids[1], code=2).stderr
    assert f"deleted dead letter {ids[1]}" in run("dead-letters", "delete", ids[1], "--yes").stderr
    of_it = ["dead-letters", "replay", "--subscription", name, "--max", "5"]
    assert one(run, *of_it, "--dry-run") == {"replayed": 1, "skipped": 0, "dry_run": True}
    assert one(run, *of_it, "--rate", "1000") == {"replayed": 1, "skipped": 0}
    assert sorted(lines(run("consume", name, "--count", "2", "--data-only").stdout)) == [1, 3]
    assert "say which" in run("dead-letters", "replay", code=2).stderr
    assert "say which" in run("dead-letters", "replay", "7", "--all", code=2).stderr
    assert "--dry-run go with" in run("dead-letters", "replay", "7", "--dry-run", code=2).stderr


def test_dead_letters_are_purged(run: Run) -> None:
    name = subscribed(run, "con.purge", 1, options=("--max-deliver", "1"))
    run("consume", name, "--exec", "false", "--count", "1")
    purge = ["dead-letters", "purge", "--subscription", name]
    assert "needs --yes" in run(*purge, "--older-than", "0", code=2).stderr
    assert one(run, *purge, "--older-than", "1h", "--yes") == {"purged": 0}
    assert one(run, *purge, "--older-than", "0", "--yes") == {"purged": 1}
    assert several(run, "dead-letters", "list", "--subscription", name) == []
