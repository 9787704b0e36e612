"""What is there at the end of a round, in one namespace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Copy(NamedTuple):
    """A message in the log. `name` is what it was called when it was first published: copies keep it.
    `journey` is its header, JSON, where it has arrived."""

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
    """What a subscription says of itself."""

    dead_lettered: int
    dead_letters: int
    lag: int
    in_flight: int


@dataclass(slots=True)
class World:
    """`published`: what publishers were told, by name. `rows`: rows of what is under way or was kept, by
    table. `arrived`: what the API gives of the channels at the end, as ids. `listed`: of how many letters the
    API's list tells, by subscription."""

    published: dict[str, int] = field(default_factory=dict)
    messages: list[Copy] = field(default_factory=list)
    letters: list[Letter] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    counts: dict[str, Count] = field(default_factory=dict)
    arrived: dict[str, list[int]] = field(default_factory=dict)
    listed: dict[str, int] = field(default_factory=dict)
