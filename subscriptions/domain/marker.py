"""How far somebody has come in a channel."""

from __future__ import annotations

from typing import NamedTuple


class Marker(NamedTuple):
    """How far a user has come in a channel: every message up to `id` counts as marked. `name` says in what
    sense: `read`, `delivered`, or an own one."""

    channel: str
    user: str
    name: str
    id: int
    updated_at_us: int


class NewMarker(NamedTuple):
    """A marker to be moved. `force`: also back."""

    channel: str
    user: str
    name: str
    id: int
    force: bool = False


class Unread(NamedTuple):
    """How much of a channel comes after a user's marker. `unread`: kept originals that are not deleted.
    `place` orders such rows."""

    place: int
    channel: str
    id: int
    unread: int
    last_id: int
    last_seq: int
