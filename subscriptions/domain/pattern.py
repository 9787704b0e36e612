"""Patterns over channel names: `*` stands for one token, a last `>` for one or more.

A pattern becomes one regular expression in which every part ends where the next dot begins. So there is only
one way to split a name, and for any pattern, matching takes time linear in the length of the name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from subscriptions.domain.errors import invalid
from subscriptions.domain.names import MAX_NAME_CHARACTERS, NAME_PART

MAX_PATTERN_TOKENS: Final = 512
"""For all patterns of one reader together: the database compiles them into one regular expression."""
MAX_PATTERN_CHARACTERS: Final = 8192

_PATTERN: Final = re.compile(rf"(?:(?:{NAME_PART}|\*)\.)*(?:{NAME_PART}|\*|>)")
_RULE: Final = "must be tokens as in a channel name, or *, joined by dots; the last may be >"
_ONE: Final = r"[^.]+"
_SOME: Final = r"[^.]+(\.[^.]+)*"


def is_pattern(text: str) -> bool:
    """Whether a valid `text` is a pattern, and not the name of one channel."""
    return "*" in text or ">" in text


def check_pattern(text: str, field_name: str = "channel") -> str:
    """Return `text` (a pattern or a plain channel name), or raise `invalid_request` about `field_name`."""
    if not text:
        raise invalid(field_name, "must not be empty")
    if len(text) > MAX_NAME_CHARACTERS:
        raise invalid(field_name, f"is longer than {MAX_NAME_CHARACTERS} characters")
    if _PATTERN.fullmatch(text) is None:
        raise invalid(field_name, _RULE)
    return text


def check_budget(texts: Sequence[str], field_name: str) -> None:
    """Check that a reader's (valid) patterns and names together can be matched fast enough: names cost
    nothing, patterns cost by their tokens and characters. Raises `invalid_request` about `field_name`."""
    patterns = [text for text in texts if is_pattern(text)]
    if sum(text.count(".") + 1 for text in patterns) > MAX_PATTERN_TOKENS:
        raise invalid(field_name, f"has patterns of more than {MAX_PATTERN_TOKENS} tokens together")
    if sum(map(len, patterns)) > MAX_PATTERN_CHARACTERS:
        raise invalid(field_name, f"has patterns of more than {MAX_PATTERN_CHARACTERS} characters together")


def to_regex(pattern: str) -> str:
    """An anchored regular expression that matches the same channel names, in Python and in Postgres (`~`).

    Expects a pattern that passed `check_pattern`: in it, only dots need quoting.
    """
    return "^" + r"\.".join(_part(part) for part in pattern.split(".")) + "$"


def covers(pattern: str, other: str) -> bool:
    """Whether a (valid) pattern matches every name that `other`, a pattern or a plain name, matches."""
    if pattern == ">" or pattern == other:
        return True
    parts, others = pattern.split("."), other.split(".")
    for part, each in zip(parts, others, strict=False):
        if part == ">":
            return True
        if each == ">" or part not in ("*", each):
            return False
    return len(parts) == len(others)


def intersect(pattern: str, other: str) -> str | None:
    """The pattern of exactly the names that two (valid) patterns or names both match; None if no name is."""
    parts, others, common = pattern.split("."), other.split("."), []
    for place, (part, each) in enumerate(zip(parts, others, strict=False)):
        if part == ">" or each == ">":
            common += others[place:] if part == ">" else parts[place:]
            break
        if "*" not in (part, each) and part != each:
            return None
        common.append(each if part == "*" else part)
    else:
        if len(parts) != len(others):
            return None
    found = ".".join(common)
    return found if len(found) <= MAX_NAME_CHARACTERS else None


def _part(part: str) -> str:
    if part == "*":
        return _ONE
    return _SOME if part == ">" else part


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern; made by `compile_pattern`."""

    text: str
    _regex: re.Pattern[str] = field(repr=False, compare=False)

    def matches(self, channel: str) -> bool:
        """Whether the channel of this (valid) name belongs to the pattern."""
        return self._regex.fullmatch(channel) is not None


def compile_pattern(text: str, field_name: str = "channel") -> Pattern:
    """Compile a pattern or a plain name once, for many matches. Raises as `check_pattern` does."""
    return Pattern(check_pattern(text, field_name), re.compile(to_regex(text)))
