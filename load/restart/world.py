"""The state of one namespace at the end of a round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Copy(NamedTuple):
    """A message in the log. `name` is the name from its first publish, which copies keep. `journey` is its
    header (JSON) if it has arrived."""

    id: int
    channel: str
    name: str
    journey: str | None = None


class Letter(NamedTuple):
    """A dead letter: which message of which subscription died, and where its copy was published. `hops` is
    the sum of its journey's counts; `died_at` in seconds since 1970."""

    subscription: str
    channel: str
    message_id: int
    name: str
    reason: str
    to_channel: str | None
    to_id: int | None
    hops: int
    died_at: float = 0.0


class Count(NamedTuple):
    """The counts in a subscription's stats."""

    dead_lettered: int
    dead_letters: int
    lag: int
    in_flight: int


@dataclass(slots=True)
class World:
    """The state of a namespace. `published`: the confirmed ids, by name. `rows`: the numbers of rows that are
    left, by table. `arrived`: the ids in the end channels, from the API. `listed`: the numbers of dead
    letters in the API's list, by subscription."""

    published: dict[str, int] = field(default_factory=dict)
    messages: list[Copy] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    counts: dict[str, Count] = field(default_factory=dict)
    arrived: dict[str, list[int]] = field(default_factory=dict)
    listed: dict[str, int] = field(default_factory=dict)
