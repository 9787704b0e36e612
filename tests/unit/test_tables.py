"""What lists show on a terminal."""

from __future__ import annotations

import sys

import pytest
from gapless_cli.tables import Column, show, show_one
from gapless_cli.terminal import printable

EVIL = "bad\x1b]0;owned\x07 card\x9b2J\nnext"
SHOWN = r"bad\x1b]0;owned\x07 card\x9b2J\nnext"


def test_what_a_terminal_would_obey_is_written_as_escapes() -> None:
    assert printable(EVIL) == SHOWN
    assert printable("Grüße [red] 日本") == "Grüße [red] 日本"


def test_errors_and_data_of_others_do_not_reach_a_terminal_raw(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    show_one({"id": 7, "last_error": EVIL, "message": {"data": {"name": EVIL}}})
    show([EVIL], str, [Column("last error", str)])
    said = capsys.readouterr().out
    assert SHOWN in said
    assert not {"\x1b", "\x07", "\x9b"} & set(said)
