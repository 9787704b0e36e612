"""`gapless channels`."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

from tests.cli.conftest import COMMAND, Run, environment
from tests.patience import PATIENCE_S


def test_set_show_list_delete(run: Run) -> None:
    made = json.loads(run("channels", "set", "keep.a", "--max-age", "7d", "--message-ttl", "1h30m").stdout)
    assert made["retention"] == {"max_age": 604800}
    assert made["message_ttl"] == 5400
    changed = json.loads(run("channels", "set", "keep.a", "--max-age", "none", "--max-messages", "10").stdout)
    assert changed["retention"] == {"max_messages": 10}
    assert changed["message_ttl"] == 5400, "what is not named stays"
    assert json.loads(run("channels", "show", "keep.a").stdout) == changed
    run("publish", "keep.b", "1")
    listed = [json.loads(line) for line in run("channels", "--pattern", "keep.*").stdout.splitlines()]
    assert [c["name"] for c in listed] == ["keep.a", "keep.b"]
    assert "needs --yes" in run("channels", "delete", "keep.b", code=2).stderr
    assert "deleted keep.b with 1 messages" in run("channels", "delete", "keep.b", "--yes").stderr
    assert "channel_not_found" in run("channels", "delete", "keep.b", "--yes", code=1).stderr


def test_a_change_of_what_was_seen(run: Run) -> None:
    seen = json.loads(run("channels", "set", "tagged", "--max-age", "7d").stdout)["etag"]
    assert json.loads(run("channels", "show", "tagged").stdout)["etag"] == seen
    changed = run("channels", "set", "tagged", "--max-age", "8d", "--if-match", seen)
    newer = json.loads(changed.stdout)["etag"]
    assert newer != seen
    refused = run("channels", "set", "tagged", "--max-age", "9d", "--if-match", seen, code=1)
    assert "precondition_failed" in refused.stderr
    assert (
        "precondition_failed"
        in run("channels", "delete", "tagged", "--yes", "--if-match", seen, code=1).stderr
    )
    run("channels", "delete", "tagged", "--yes", "--if-match", newer.strip('"'))
    refused = run("channels", "set", "tagged", "--max-age", "9d", "--if-match", "*", code=1)
    assert "precondition_failed" in refused.stderr


def test_a_url_before_the_word_counts_too(run: Run, server_url: str) -> None:
    run("publish", "keep.url", "1")
    nowhere = "http://127.0.0.1:1"
    assert "keep.url" in run("channels", "--url", server_url, "show", "keep.url", url=nowhere).stdout
    assert "keep.url" in run("channels", "show", "keep.url", "--url", server_url, url=nowhere).stdout


def test_a_terminal_gets_a_table(run: Run, server_url: str, tmp_path: Path) -> None:
    run("publish", "table.a", "1")
    mine, theirs = pty.openpty()
    command = [*COMMAND, "channels", "--pattern", "table.*"]
    environ = environment(tmp_path, server_url, {"COLUMNS": "120", "TERM": "xterm"})
    with subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=theirs) as process:
        assert process.wait(PATIENCE_S) == 0
    os.close(theirs)
    shown = os.read(mine, 65536).decode()
    os.close(mine)
    assert "messages" in shown
    assert "table.a" in shown
    assert "{" not in shown
