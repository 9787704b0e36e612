"""`gapless publish` and what comes out of `gapless history`."""

from __future__ import annotations

import json
import subprocess
from base64 import b64decode
from pathlib import Path
from typing import Any

from tests.cli.conftest import COMMAND, Run, Start, environment
from tests.patience import PATIENCE_S, next_line


def read(run: Run, channel: str, *options: str) -> list[dict[str, Any]]:
    """What the history command prints."""
    return [json.loads(line) for line in run("history", channel, *options).stdout.splitlines()]


def test_a_message_with_everything(run: Run) -> None:
    options = ["--key", "k", "--type", "t", "--header", "a=b=c", "--header", "d=", "--ttl", "1h"]
    options += ["--sender", "ann"]
    answer = run("publish", "cli.one", '{"n": 1, "ü": null}', *options).stdout
    assert answer.count("\n") == 1
    stored = json.loads(answer)
    assert (stored["channel"], stored["seq"]) == ("cli.one", 1)
    [message] = read(run, "cli.one")
    assert message["id"] == stored["id"]
    assert message["created_at"] == stored["created_at"]
    assert (message["key"], message["type"], message["data"]) == ("k", "t", {"n": 1, "ü": None})
    assert message["sender"] == "ann"
    assert message["headers"] == {"a": "b=c", "d": ""}
    assert message["expires_at"][:11] >= message["created_at"][:11]


def test_where_the_data_comes_from(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(b"\x00\xff")
    run("publish", "cli.data", input='{"from": "stdin"}\n')
    run("publish", "cli.data", "-", input="[1]")
    run("publish", "cli.data", "--text", input="plain\n")
    run("publish", "cli.data", "{", "--text")
    run("publish", "cli.data", "--binary", "file.bin")
    *messages, binary = read(run, "cli.data")
    assert [m["data"] for m in messages] == [{"from": "stdin"}, [1], "plain", "{"]
    assert b64decode(binary["data_base64"]) == b"\x00\xff"


def test_several_lines_are_asked_for_as_lines(run: Run) -> None:
    for several in ('{"n": 1}\n{"n": 2}\n', "one\ntwo\n"):
        assert "--lines publishes" in run("publish", "cli.several", input=several, code=2).stderr
    assert "--text publishes" in run("publish", "cli.several", input="one\n", code=2).stderr


def test_changes_of_a_message_and_what_came_of_it(run: Run) -> None:
    def publish(*arguments: str, code: int = 0) -> Any:
        answer = run("publish", "cli.changes", *arguments, code=code)
        return answer.stderr if code else json.loads(answer.stdout)["id"]

    one, two, three = publish("1"), publish("2"), publish("3")
    target = ["--target", str(one), "--action"]
    update = publish("10", *target, "update", "--expected-version", str(one))
    assert "version_mismatch" in publish("11", *target, "update", "--expected-version", str(one), code=1)
    annotation = ["--annotation", "like", "--mode", "distinct"]
    liked = publish(*target, "annotate", *annotation, "--key", "up")
    publish(*target, "annotate", *annotation, "--remove")
    cut = publish("--target", str(two), "--action", "delete", "--through", str(three))
    log = read(run, "cli.changes", "--changes", "only")
    assert [m["id"] for m in log[:2]] == [update, liked]
    assert (log[2]["annotation"], log[2]["mode"], log[2]["remove"]) == ("like", "distinct", True)
    assert (log[3]["target"], log[3]["action"], log[3]["through"]) == (two, "delete", three)
    first, *hidden = read(run, "cli.changes", "--view", "latest")
    assert (first["data"], first["replies"]) == (10, 0)
    assert first["annotations"] == {"like": {"distinct": 1, "keys": {"up": 1}}}
    assert [(m["id"], m["version"], m["deleted"], "data" in m) for m in hidden] == [
        (two, cut, True, False),
        (three, cut, True, False),
    ]
    assert read(run, "cli.changes", "--view", "latest", "--changed-after", str(log[2]["id"])) == hidden


def test_conditions(run: Run) -> None:
    first = run(
        "publish", "cli.conditions", "1", "--expected-last-seq", "0", "--idempotency-key", "c1"
    ).stdout
    again = run(
        "publish", "cli.conditions", "1", "--expected-last-seq", "0", "--idempotency-key", "c1"
    ).stdout
    assert json.loads(again) == {**json.loads(first), "replayed": True}
    assert "head_mismatch" in run("publish", "cli.conditions", "2", "--expected-last-seq", "0", code=1).stderr
    assert (
        "idempotency_mismatch"
        in run("publish", "cli.conditions", "3", "--idempotency-key", "c1", code=1).stderr
    )
    assert [m["data"] for m in read(run, "cli.conditions")] == [1]


def test_lines(run: Run) -> None:
    numbers = "\n".join(map(str, range(2500)))
    options = ["--lines", "--key", "k", "--sender", "ann"]
    answers = run("publish", "cli.lines", *options, input=numbers).stdout.splitlines()
    assert [json.loads(a)["seq"] for a in answers] == list(range(1, 2501))
    messages = read(run, "cli.lines")
    assert [m["data"] for m in messages] == list(range(2500))
    assert {(m["key"], m["sender"]) for m in messages} == {("k", "ann")}


def test_lines_before_a_bad_one_are_published(run: Run) -> None:
    failed = run("publish", "cli.badline", "--lines", input="1\n\n2\n{\n3\n", code=2)
    assert "line 4 of stdin is not JSON" in failed.stderr
    assert len(failed.stdout.splitlines()) == 2
    assert [m["data"] for m in read(run, "cli.badline")] == [1, 2]


def test_lines_do_not_wait_for_more_lines(start: Start) -> None:
    with start("publish", "cli.live", "--lines", "--text") as process:
        assert process.stdin is not None
        for seq, line in enumerate(["one", "two"], 1):
            process.stdin.write(line + "\n")
            process.stdin.flush()
            assert json.loads(next_line(process, process.stdout))["seq"] == seq
        process.stdin.close()
        assert process.wait(PATIENCE_S) == 0


def test_a_refused_line_ends_it_although_more_lines_may_come(start: Start) -> None:
    with start("publish", "no such name", "--lines") as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("1\n")
        process.stdin.flush()
        assert process.wait(PATIENCE_S) == 1
        assert process.stderr.read().startswith("gapless: invalid_request: channel: must be tokens")


def test_lines_that_cannot_be_read_end_it(tmp_path: Path, server_url: str) -> None:
    with (tmp_path / "written only").open("w") as stdin:
        done = subprocess.run(
            [*COMMAND, "publish", "cli.unreadable", "--lines"],
            env=environment(tmp_path / "home", server_url, {}),
            stdin=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert (done.returncode, done.stderr) == (2, "gapless: stdin cannot be read: Bad file descriptor\n")


def test_history_filters_and_order(run: Run) -> None:
    ids = [
        json.loads(run("publish", "cli.filter", str(n), "--key", f"k{n % 2}").stdout)["id"] for n in range(4)
    ]
    assert [m["data"] for m in read(run, "cli.filter", "--key", "k1")] == [1, 3]
    assert [m["data"] for m in read(run, "cli.filter", "--order", "desc", "--limit", "2")] == [3, 2]
    inner = read(run, "cli.filter", "--after", str(ids[0]), "--before", str(ids[3]))
    assert [m["data"] for m in inner] == [1, 2]
    assert [m["data"] for m in read(run, "cli.filter", "--since", "1h", "--limit", "2")] == [0, 1]
    assert read(run, "cli.filter", "--type", "other") == []
    assert "channel_not_found" in run("history", "cli.nothing", code=1).stderr


def test_history_goes_on_with_what_happens(run: Run, start: Start) -> None:
    run("publish", "cli.follow", "1")
    with start("history", "cli.follow", "--follow", "--limit", "2") as process:
        assert json.loads(next_line(process, process.stdout))["data"] == 1
        run("publish", "cli.follow", "2")
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert json.loads(out)["data"] == 2
        assert process.returncode == 0
