"""Users' data on a terminal: as a program would read it, without what the terminal itself would obey."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from pathlib import Path

import httpx
import pytest
from gapless_cli.tables import Column, show
from gapless_cli.terminal import printable, printable_json, printable_lines

from tests.cli.conftest import COMMAND, Run, environment
from tests.patience import PATIENCE_S

OBEYED = "\x1b[2J \x07 \x7f \x85 \x9b31m \u200e \u202e \u2066 \u2028 \ufff9"
PLAIN = "Grüße 日本 👩\u200d🚀 a\u00a0b \\u202e"


def obeyed(text: str) -> set[str]:
    return set(text) & set(OBEYED.replace(" ", "").replace("[2J", "").replace("31m", ""))


def test_what_a_terminal_obeys_becomes_an_escape_and_nothing_else_does() -> None:
    assert not obeyed(printable(OBEYED))
    assert printable(PLAIN) == PLAIN
    assert printable_lines(f"a{OBEYED}\nb") == f"a{printable(OBEYED)}\nb"
    for value in (OBEYED, PLAIN):
        shown = printable_json(json.dumps({value: value}, ensure_ascii=False, indent=1).encode())
        assert not obeyed(shown.decode())
        assert json.loads(shown) == {value: value}


def test_a_narrow_terminal_cuts_nothing_and_breaks_no_id(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = ["1795614727733248", "1795614727733249"]
    columns: list[Column[str]] = [
        Column("subscription", lambda _: "billing-of-the-northern-shops"),
        Column("message", lambda one: one, True),
        Column("channel", lambda _: "orders.eu.north.oslo.2026"),
        Column("other", lambda one: one[::-1], True),
        Column("last error", lambda _: "x" * 60),
    ]
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    show(ids, str, columns)
    shown = capsys.readouterr().out
    for one in ("billing-of-the-northern-shops", *ids, *(one[::-1] for one in ids)):
        assert one in shown
    assert "…" not in shown
    assert shown.count("x") == len(ids) * 60


def on_a_terminal(home: Path, url: str, *arguments: str) -> str:
    """What a command writes on the terminal that is its output and its errors."""
    mine, theirs = pty.openpty()
    environ = environment(home, url, {"TERM": "xterm"})
    with subprocess.Popen(
        [*COMMAND, *arguments], env=environ, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        while chunk := _read(mine):
            shown += chunk
        assert process.wait(PATIENCE_S) == 0, shown
    os.close(mine)
    return shown.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # Whoever wrote there has ended.
        return b""


@pytest.mark.parametrize("command", ["history", "subscribe", "definitions"])
def test_a_terminal_is_shown_no_character_that_it_obeys(
    run: Run, server_url: str, tmp_path: Path, command: str
) -> None:
    channel = f"terminal.{command}"
    address = f"{server_url}/v1/channels/{channel}/messages"
    assert httpx.post(address, json={"data": OBEYED}, timeout=PATIENCE_S).status_code == 201
    if command == "definitions":
        settings = {"channels": ["terminal.>"], "filter": {"keys": ["a\u202eb"]}}
        address = f"{server_url}/v1/subscriptions/terminal"
        assert httpx.put(address, json=settings, timeout=PATIENCE_S).status_code == 201
        assert not obeyed(on_a_terminal(tmp_path, server_url, "definitions", "export"))
        return
    words = {"history": [channel], "subscribe": [channel, "--from", "earliest", "--count", "1"]}[command]
    shown = on_a_terminal(tmp_path, server_url, command, *words)
    assert not obeyed(shown)
    [line] = [line for line in shown.splitlines() if line.startswith("{")]
    assert json.loads(line)["data"] == OBEYED
    piped = run(command, *words).stdout
    assert "\u202e" in piped, "programs get it as it is"
