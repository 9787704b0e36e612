"""Derives from the recorded facts when each lease was certainly live, and how it ended.

A lease that may have ended does not count as live. Otherwise nearly every clean run would show breaches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from load.groups.history import SECOND, Delivery, Group, Groups, Pause, Request, Session
from load.history import Outcome

Key = tuple[str, int]
"""A subscription and a message."""


@dataclass(frozen=True, slots=True)
class Slack:
    """Tolerances in nanoseconds: how far two clocks of one machine may differ, how late a member may detect
    the end of its stream, and (`blind_ns`) how long a connection may get leases after its member left."""

    clock_ns: int = SECOND // 10
    stream_ns: int = SECOND // 2
    blind_ns: int = SECOND


@dataclass(slots=True)
class Lease:
    """One delivery with all requests about it, in the order of sending.

    It was certainly live from `delivery.at_ns` to `sure_until_ns` (never, if that is earlier), and without a
    settlement would have been until `alive_until_ns`. By its deadline, it did not begin before `earliest_ns`,
    and had ended by `over_ns`.
    """

    delivery: Delivery
    session: Session
    requests: list[Request]
    earliest_ns: int
    alive_until_ns: int
    sure_until_ns: int
    over_ns: int
    acked: Request | None = None
    maybe_acked: Request | None = None
    released: Request | None = None
    maybe_released: bool = False

    @property
    def attempt(self) -> int:
        """The delivery's attempt."""
        return self.delivery.attempt

    def __str__(self) -> str:
        story = (
            ", ".join(f"{r.kind} {r.status or r.outcome.name.lower()}" for r in self.requests) or "unsettled"
        )
        return f"attempt {self.attempt} in session {self.session.number} ({story})"


@dataclass(slots=True)
class Book:
    """All leases of a run, by subscription and message, each list in the order of attempts."""

    history: Groups
    slack: Slack
    leases: dict[Key, list[Lease]] = field(default_factory=lambda: defaultdict(list))
    pauses: dict[str, list[Pause]] = field(default_factory=dict)
    strays: list[Request] = field(default_factory=list)
    """Requests with a receipt that their subscription did not give out."""

    @staticmethod
    def of(history: Groups, slack: Slack) -> Book:
        """Collect the leases of a history."""
        book = Book(history, slack)
        requests: dict[tuple[str, str], list[Request]] = defaultdict(list)
        for request in sorted(history.requests, key=lambda request: request.asked_ns):
            requests[request.group, request.receipt].append(request)
        book.pauses = _by_member(history.pauses)
        for delivery in history.deliveries:
            asked = requests.pop((delivery.group, delivery.receipt), [])
            session, group = history.sessions[delivery.session], history.groups[delivery.group]
            paused = book.pauses.get(session.member, [])
            lease = _lease(delivery, group, session, asked, paused, slack)
            book.leases[delivery.group, delivery.message_id].append(lease)
        made = set(history.products)
        for key, leases in book.leases.items():
            leases.sort(key=lambda lease: (lease.attempt, lease.delivery.at_ns))
            if key in made:
                _believe_product(leases)
        book.strays = [request for left in requests.values() for request in left]
        return book

    def every(self) -> Iterable[Lease]:
        """All leases."""
        return (lease for leases in self.leases.values() for lease in leases)


def _by_member(pauses: list[Pause]) -> dict[str, list[Pause]]:
    found: dict[str, list[Pause]] = defaultdict(list)
    for pause in sorted(pauses, key=lambda pause: pause.to_ns):
        found[pause.member].append(pause)
    return found


def _lease(delivery: Delivery, group: Group, session: Session, asked: list[Request], pauses: list[Pause],
           slack: Slack) -> Lease:  # fmt: skip
    known = [request for request in asked if request.outcome is not Outcome.FAIL]
    sure_deadline = last_deadline = delivery.deadline_ns
    for request in known:
        if request.kind != "extend":
            continue
        if request.did("extended") and request.deadline_ns is not None:
            sure_deadline = request.deadline_ns
            last_deadline = max(last_deadline, sure_deadline)
        elif request.outcome is Outcome.INFO:
            last_deadline += group.ack_wait_ns
    settling = [request for request in known if request.kind != "extend"]
    ends = [sure_deadline - slack.clock_ns]
    if session.stream:
        ends += _stream_ends(delivery, session, pauses, slack)
    alive = min(ends)
    sure = min(alive, settling[0].asked_ns) if settling else alive
    earliest = delivery.deadline_ns - group.ack_wait_ns
    lease = Lease(delivery, session, asked, earliest, alive, sure, last_deadline)
    acks = [request for request in settling if request.kind in ("ack", "transact")]
    lease.acked = next((request for request in acks if request.did("acked")), None)
    if lease.acked is not None and lease.acked.kind == "transact":
        # The answer may be for an earlier attempt with the same key that got no answer.
        lease.acked = next(
            r for r in acks if r.kind == "transact" and (r.outcome is Outcome.INFO or r.did("acked"))
        )
    releases = [request for request in settling if request.kind == "release"]
    lease.released = next((request for request in releases if request.did("released")), None)
    lease.maybe_released = any(request.outcome is Outcome.INFO for request in releases)
    lease.maybe_acked = next((request for request in acks if request.outcome is Outcome.INFO), None)
    return lease


def _believe_product(leases: list[Lease]) -> None:
    """Count the ack of a transaction without an answer as stored if its product was published."""
    asked = [(lease, r) for lease in leases for r in lease.requests if r.kind == "transact"]
    tried = [(lease, request) for lease, request in asked if request.outcome is Outcome.INFO]
    if len({id(lease) for lease, _ in tried}) == 1 and not any(lease.acked for lease in leases):
        first, request = tried[0]
        first.acked = request


def _stream_ends(delivery: Delivery, session: Session, pauses: list[Pause], slack: Slack) -> list[int]:
    """The times at which a lease may have ended with its stream. A stopped member notices nothing, so its
    notes count only until it was stopped."""
    ends = []
    if session.ended_ns is not None:
        ends.append(session.ended_ns - (0 if session.killed else slack.stream_ns))
    at = bisect_right(pauses, delivery.at_ns, key=lambda pause: pause.to_ns)
    if at < len(pauses):
        ends.append(pauses[at].from_ns)
    return ends
