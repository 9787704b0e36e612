"""Texts that options take, and secrets that are not shown."""

from __future__ import annotations

import pytest
from gapless_cli.failures import Failure
from gapless_cli.options import pairs, seconds, whole_seconds

from app.cli.doctor.settings import without_password


@pytest.mark.parametrize(
    ("text", "value"),
    [("90", 90), ("1.5", 1.5), ("30s", 30), ("250ms", 0.25), ("12h", 43200), ("7d", 604800), ("1h30m", 5400)],
)
def test_durations(text: str, value: float) -> None:
    assert seconds(text, "--x") == value


@pytest.mark.parametrize("text", ["", "h", "1x", "-1", "1h30", "1 h", "1e3", "٣s"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(Failure, match="is no duration"):
        seconds(text, "--x")


def test_whole_seconds() -> None:
    assert whole_seconds("2m", "--x") == 120
    with pytest.raises(Failure, match="whole seconds"):
        whole_seconds("1.5", "--x")


def test_pairs() -> None:
    assert pairs(["a=1", "b="], "--header") == {"a": "1", "b": ""}
    assert pairs(None, "--header") is None
    with pytest.raises(Failure, match="given twice"):
        pairs(["a=1", "a=2"], "--header")


def test_passwords_are_not_shown() -> None:
    assert without_password("postgresql://joe:secret@db:5432/x") == "postgresql://joe:***@db:5432/x"
    assert without_password("redis://:secret@cache") == "redis://:***@cache"
    assert without_password("postgresql://joe@db/x?host=/run") == "postgresql://joe@db/x?host=/run"
