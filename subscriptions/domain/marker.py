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
