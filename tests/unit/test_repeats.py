"""A warning that repeats itself is logged now and then, with a count."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest

from app.process.logs import EVERY_S, MAX_KINDS, Repeats, configure_logging


class Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.addFilter(Repeats(lambda: self.now))
        self.lines: list[tuple[str, int]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.getMessage(), getattr(record, "left_out", 0)))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def log(told: Told) -> logging.Logger:
    made = logging.Logger("one")
    made.addHandler(told)
    return made


def test_one_warning_of_a_kind_is_told_in_a_while_and_the_next_counts_the_others(
    told: Told, log: logging.Logger
) -> None:
    for number in range(50):
        log.warning("the database is away: %s", number)
        told.now += EVERY_S / 20
    assert told.lines == [(f"the database is away: {20 * n}", 19 * bool(n)) for n in range(3)]


def test_other_kinds_loggers_and_levels_have_their_own(told: Told, log: logging.Logger) -> None:
    log.warning("away")
    log.warning("expiry is delayed")
    other = logging.Logger("other")
    other.addHandler(told)
    other.warning("away")
    for _ in range(3):
        log.error("away")
        log.info("away")
    assert len(told.lines) == 9
    assert not any(left_out for _, left_out in told.lines)


def test_kinds_without_end_take_no_memory_without_end(told: Told, log: logging.Logger) -> None:
    for number in range(2 * MAX_KINDS):
        log.warning(f"kind {number}")
    for found in told.filters:
        assert isinstance(found, Repeats)
        assert len(found._kinds) == MAX_KINDS


def test_the_service_logs_so(monkeypatch: pytest.MonkeyPatch) -> None:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    try:
        configure_logging("info")
        for _ in range(3):
            logging.getLogger("some").warning("it is away")
    finally:
        root.handlers[:], root.level = before, level
    (line,) = written.getvalue().splitlines()
    assert json.loads(line)["message"] == "it is away"
