"""The plan of a storm: subscriptions of every kind, channels, keys, and how often members make errors."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from load.groups.history import SECOND, Group
from load.wire import Target

BACKOFF_S = [0.2, 0.5, 1.0]
WEIGHTS = {"storm.orders": 9, "storm.jobs": 9, "storm.audit.eu": 2, "storm.audit.us": 2}
"""Channels with their shares of messages. Channels that are read one message at a time get fewer."""
KEYS = 12
KEYLESS = 0.15
"""The number of keys in a channel, and the share of messages without a key."""
PRODUCTS = "made"
"""The channel that transactions publish to."""
POISON = 0.02
OWN_TTL, OWN_TTL_S = 0.02, 4
"""The share of messages with their own ttl, and that ttl in seconds."""
TTL_S = 3
CYCLE_NS = 20 * SECOND
STORMY = 0.7
"""Members make errors in this share of each cycle. In the rest they see every delivery, so that a skipped
attempt there is a breach."""


class Face(StrEnum):
    """How a member gets its deliveries."""

    STREAM = "stream"
    SOCKET = "socket"
    PULL = "pull"


@dataclass(frozen=True, slots=True)
class Crew:
    """The members of one subscription: how many stream over SSE, how many over WebSocket, how many pull, and
    the limit of deliveries of each."""

    group: Group
    streams: int
    sockets: int
    pulls: int
    limit: int

    @property
    def faces(self) -> list[Face]:
        """The face of each member."""
        return [Face.STREAM] * self.streams + [Face.SOCKET] * self.sockets + [Face.PULL] * self.pulls


CREWS = (
    Crew(Group("orders", ("storm.orders",), "key", max_in_flight=12), 0, 1, 3, 5),
    Crew(Group("everything", ("storm.>",), "key", max_in_flight=10), 2, 2, 0, 3),
    Crew(Group("audit", ("storm.audit.*",), "channel", max_in_flight=50), 1, 1, 2, 3),
    Crew(Group("work", ("storm.orders", "storm.jobs"), "none", dead_letter="dead.work"), 1, 1, 2, 4),
    Crew(Group("brief", ("storm.jobs",), "none", ttl_ns=TTL_S * SECOND), 1, 2, 1, 5),
    Crew(Group("mixed", ("storm.audit.eu", "storm.jobs"), "key", dead_letter="dead.mixed"), 1, 1, 2, 3),
)


@dataclass(frozen=True, slots=True)
class Temper:
    """The errors of members in stormy times, as probabilities for each delivery."""

    crash: float = 0.03
    late: float = 0.03
    nack: float = 0.05
    release: float = 0.05
    reject: float = 0.02
    extend: float = 0.05
    probe: float = 0.03
    transact: float = 0.1


@dataclass(frozen=True, slots=True)
class Errand:
    """The parameters of a member's process. It makes errors from `from_ns` until `until_ns`, in cycles."""

    number: int
    member: str
    group: str
    foreign: str
    face: Face
    limit: int
    target: Target
    folder: str
    seed: int
    temper: Temper
    from_ns: int
    until_ns: int

    def is_stormy(self, now_ns: int) -> bool:
        """Whether members make errors now."""
        into = (now_ns - self.from_ns) % CYCLE_NS
        return self.from_ns <= now_ns < self.until_ns and into < STORMY * CYCLE_NS


def definition(group: Group) -> dict[str, Any]:
    """The body of the request that makes a subscription."""
    asked: dict[str, Any] = {
        "channels": list(group.channels),
        "start": "earliest",
        "ack_wait": group.ack_wait_ns / SECOND,
        "max_deliver": group.max_deliver,
        "backoff": BACKOFF_S,
        "max_in_flight": group.max_in_flight,
        "ordering": group.ordering,
    }
    if group.ttl_ns is not None:
        asked["message_ttl"] = group.ttl_ns / SECOND
    if group.dead_letter is not None:
        asked["dead_letter"] = {"channel": group.dead_letter}
    return asked
