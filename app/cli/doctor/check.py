"""One thing looked at."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Word(StrEnum):
    """`fail`: the service does not work or does not keep a promise. `warn`: somebody should know."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """`advice` says what to do about it, where there is something to do."""

    name: str
    word: Word
    detail: str
    advice: str | None = None


def ok(name: str, detail: str) -> Check:
    """Nothing to do."""
    return Check(name, Word.OK, detail)


def warn(name: str, detail: str, advice: str) -> Check:
    """It works, and may surprise."""
    return Check(name, Word.WARN, detail, advice)


def fail(name: str, detail: str, advice: str) -> Check:
    """It does not work, or a promise does not hold."""
    return Check(name, Word.FAIL, detail, advice)
