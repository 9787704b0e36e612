"""Matches channels with patterns. It does not use the server's code, so that it finds errors in it."""

from __future__ import annotations

from collections.abc import Iterable


def is_pattern(text: str) -> bool:
    """Whether a text is a pattern and not a name."""
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
