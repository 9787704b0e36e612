"""What a reader asks for: channels, patterns and filters, as one comparable value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

MAX_CHANNELS: Final = 128
"""The most channels and patterns of one reader or durable subscription, and the most subscriptions of a
WebSocket."""
Changes = Literal["all", "none", "only"]
"""Whether messages that change others are read with the rest, are left out, or are all that is read."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Channels and patterns of one namespace, narrowed to message types and keys (empty: all of them), and
    with or without the messages that change others. `markers`: whether markers that move are told too,
    whatever the filters.

    Two readers with equal selections read the same sequence, so they share one feed. Build it with
    `select`, which sorts and dedupes its parts.
    """

    namespace: str
    names: tuple[str, ...]
    patterns: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    changes: Changes = "all"
    markers: bool = False

    @property
    def single(self) -> str | None:
        """The only channel of this selection, or None. One channel needs no watermark: its seq is dense."""
        return self.names[0] if len(self.names) == 1 and not self.patterns else None

    @property
    def is_filtered(self) -> bool:
        """Whether a filter may leave out a message."""
        return bool(self.types or self.keys) or self.changes != "all"

    def admits(self, type_: str, key: str | None, *, is_change: bool) -> bool:
        """Whether the filters let a message of this type and key through."""
        if self.types and type_ not in self.types:
            return False
        if self.changes != "all" and is_change != (self.changes == "only"):
            return False
        return not self.keys or key in self.keys


def select(
    namespace: str,
    names: tuple[str, ...] | list[str] = (),
    patterns: tuple[str, ...] | list[str] = (),
    types: tuple[str, ...] | list[str] = (),
    keys: tuple[str, ...] | list[str] = (),
    changes: Changes = "all",
    *,
    markers: bool = False,
) -> Selection:
    """The canonical `Selection` of these parts."""
    first, second, third, fourth = (tuple(sorted(set(part))) for part in (names, patterns, types, keys))
    return Selection(namespace, first, second, third, fourth, changes, markers)
