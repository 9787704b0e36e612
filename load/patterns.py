"""Matches channels with patterns, independently of the server's code, to find errors in it."""

from __future__ import annotations

from collections.abc import Iterable


def is_pattern(text: str) -> bool:
    """Whether it is more than a name."""
    return "*" in text or ">" in text


def matches(pattern: str, channel: str) -> bool:
    """Whether `channel` fits `pattern`: `*` stands for one token, a final `>` for one or more."""
    if not is_pattern(pattern):
        return pattern == channel
    wanted, given = pattern.split("."), channel.split(".")
    if wanted[-1] == ">":
        wanted = wanted[:-1]
        if len(given) <= len(wanted):
            return False
        given = given[: len(wanted)]
    if len(wanted) != len(given):
        return False
    return all(want in ("*", have) for want, have in zip(wanted, given, strict=True))


def matches_any(patterns: Iterable[str], channel: str) -> bool:
    """Whether at least one of `patterns` fits `channel`."""
    return any(matches(pattern, channel) for pattern in patterns)
