"""What a storm is made of: subscriptions of every kind, channels, keys, and who is how clumsy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from load.groups.history import SECOND, Group
from load.wire import Target

BACKOFF_S = [0.2, 0.5, 1.0]
WEIGHTS = {"storm.orders": 9, "storm.jobs": 9, "storm.audit.eu": 2, "storm.audit.us": 2}
"""Channels, and how often each is published to: those read one message at a time get less."""
KEYS = 12
KEYLESS = 0.15
"""So many keys a channel, and this share of messages without one."""
PRODUCTS = "made"
"""The channel that transactions publish to."""
POISON = 0.02
OWN_TTL, OWN_TTL_S = 0.02, 4
"""This share of messages expires by itself after so many seconds."""
TTL_S = 3
CYCLE_NS = 20 * SECOND
STORMY = 0.7
"""Members are clumsy for this share of each cycle. In the rest nobody loses sight of a delivery, so that an
attempt skipped there has no excuse."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The members of one subscription: how many stream, how many pull, and how much each takes at a time."""

    group: Group
    streams: int
    pulls: int
    limit: int


CREWS = (
    Crew(Group("orders", ("storm.orders",), "key", max_in_flight=12), 0, 4, 5),
    Crew(Group("everything", ("storm.>",), "key", max_in_flight=10), 4, 0, 3),
    Crew(Group("audit", ("storm.audit.*",), "channel", max_in_flight=50), 2, 2, 3),
    Crew(Group("work", ("storm.orders", "storm.jobs"), "none", dead_letter="dead.work"), 2, 2, 4),
    Crew(Group("brief", ("storm.jobs",), "none", ttl_ns=TTL_S * SECOND), 3, 1, 5),
    Crew(Group("mixed", ("storm.audit.eu", "storm.jobs"), "key", dead_letter="dead.mixed"), 2, 2, 3),
)


@dataclass(frozen=True, slots=True)
class Temper:
    """How clumsy members are while it storms, as probabilities a delivery."""

    crash: float = 0.03
    late: float = 0.03
    nack: float = 0.05
    reject: float = 0.02
    extend: float = 0.05
    probe: float = 0.03
    transact: float = 0.1


@dataclass(frozen=True, slots=True)
class Errand:
    """All that a member's process has to know. Clumsy from `from_ns` until `until_ns`, cycle by cycle."""

    number: int
    member: str
    group: str
    foreign: str
    stream: bool
    limit: int
    target: Target
    folder: str
    seed: int
    temper: Temper
    from_ns: int
    until_ns: int

    def is_stormy(self, now_ns: int) -> bool:
        """Whether things go wrong now."""
        into = (now_ns - self.from_ns) % CYCLE_NS
        return self.from_ns <= now_ns < self.until_ns and into < STORMY * CYCLE_NS


def definition(group: Group) -> dict[str, Any]:
    """A subscription as the service is asked for it."""
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
