"""Checks which messages were leased at the same time or in a wrong order: G2, G8 and `max_in_flight`."""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from typing import NamedTuple

from load.groups.history import NEVER, Group, Message
from load.groups.leases import Book, Lease
from load.patterns import matches_any
from load.verdict import Breach, Verdict


class Lane(NamedTuple):
    """Messages that must be in flight one at a time, in order. `key` None: the whole channel is one lane."""

    group: str
    channel: str
    key: str | None


def check(book: Book, messages: dict[int, Message], verdict: Verdict) -> None:
    """Check all leases."""
    for leases in book.leases.values():
        for first, second in _overlaps(leases):
            verdict.add(Breach.DOUBLE_LEASE, f"{_name(first)}: {first} and {second} at once")
    died: dict[tuple[str, int], int] = {}
    for entry in book.history.dead_letters:
        died.setdefault((entry.group, entry.message_id), entry.created_ns)
    for group in book.history.groups.values():
        _check_in_flight(book, group, verdict)
        for lane, ids in _lanes(group, messages).items():
            _check_beside(book, lane, ids, verdict)
            _check_before(book, lane, ids, died, verdict)


def _overlaps(leases: list[Lease]) -> list[tuple[Lease, Lease]]:
    """Pairs of leases that were certainly live at the same time: each with the earlier one that ends last."""
    found: list[tuple[Lease, Lease]] = []
    longest: Lease | None = None
    for lease in sorted(leases, key=lambda lease: lease.delivery.at_ns):
        if lease.sure_until_ns <= lease.delivery.at_ns:
            continue
        if longest is not None and lease.delivery.at_ns < longest.sure_until_ns:
            found.append((longest, lease))
        if longest is None or lease.sure_until_ns > longest.sure_until_ns:
            longest = lease
    return found


def _check_in_flight(book: Book, group: Group, verdict: Verdict) -> None:
    mine = [lease for lease in book.every() if lease.delivery.group == group.name]
    ends: list[int] = []
    for lease in sorted(mine, key=lambda lease: lease.delivery.at_ns):
        now = lease.delivery.at_ns
        while ends and ends[0] <= now:
            heappop(ends)
        if lease.sure_until_ns > now:
            heappush(ends, lease.sure_until_ns)
            if len(ends) > group.max_in_flight:
                said = f"{len(ends)} in flight, which may have {group.max_in_flight}"
                verdict.add(Breach.PREFETCH, f"{group.name}: {said}")


def _lanes(group: Group, messages: dict[int, Message]) -> dict[Lane, list[int]]:
    """The lanes of a subscription, with their messages in the order of seq. Messages without a key have
    none."""
    lanes: dict[Lane, list[int]] = defaultdict(list)
    if group.ordering == "none":
        return lanes
    matching = {m.channel: matches_any(group.channels, m.channel) for m in messages.values()}
    for message in sorted(messages.values(), key=lambda message: message.seq):
        if matching[message.channel] and (group.ordering == "channel" or message.key is not None):
            key = message.key if group.ordering == "key" else None
            lanes[Lane(group.name, message.channel, key)].append(message.id)
    return lanes


def _check_beside(book: Book, lane: Lane, ids: list[int], verdict: Verdict) -> None:
    """Only one message of a lane may be leased at a time."""
    leases = [lease for message_id in ids for lease in book.leases.get((lane.group, message_id), ())]
    for first, second in _overlaps(leases):
        if first.delivery.message_id != second.delivery.message_id:
            said = f"{_name(first)} in {first} and {second.delivery.message_id} in {second} at once"
            verdict.add(Breach.OUT_OF_ORDER, f"{said}, both of {lane.channel} {lane.key or ''}")


def _check_before(book: Book, lane: Lane, ids: list[int], died: dict[tuple[str, int], int],
                  verdict: Verdict) -> None:  # fmt: skip
    """A message of a lane may be delivered only when all earlier ones can have been settled."""
    unsettled_until, holder = 0, 0
    for message_id in ids:
        leases = book.leases.get((lane.group, message_id), [])
        if leases:
            first = min(lease.delivery.at_ns for lease in leases)
            if first < unsettled_until:
                said = f"{lane.group}: {message_id} was given out before {holder} was settled"
                verdict.add(Breach.OUT_OF_ORDER, f"{said}, both of {lane.channel} {lane.key or ''}")
        settled = _settled_ns(book, leases, died.get((lane.group, message_id)))
        if settled > unsettled_until:
            unsettled_until, holder = settled, message_id


def _settled_ns(book: Book, leases: list[Lease], died_ns: int | None) -> int:
    """The earliest time at which this message may have been settled for good; NEVER if it was not."""
    if died_ns is not None:
        settled = died_ns - book.slack.clock_ns
    else:
        ack = (leases[-1].acked or leases[-1].maybe_acked) if leases else None
        settled = ack.asked_ns if ack is not None else NEVER
    # A message is not settled before its last lease: an earlier ack did not count.
    return max([settled, *(lease.earliest_ns - book.slack.clock_ns for lease in leases)])


def _name(lease: Lease) -> str:
    return f"{lease.delivery.group}: {lease.delivery.message_id}"
