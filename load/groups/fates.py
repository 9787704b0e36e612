"""Checks each message's attempts, its end, and its dead letter: G4, G7 and the final counts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field

from load.groups.history import FINAL, NEVER, DeadLetter, Group, Groups, Message, Session
from load.groups.leases import Book, Key, Lease
from load.history import Outcome
from load.patterns import matches_any
from load.verdict import Breach, Verdict


def expiry(group: Group, message: Message) -> int | None:
    """When a message expires for a subscription; None: never."""
    ends = [] if message.expires_ns is None else [message.expires_ns]
    if group.ttl_ns is not None:
        ends.append(message.created_ns + group.ttl_ns)
    return min(ends, default=None)


def check(book: Book, messages: dict[int, Message], verdict: Verdict) -> None:
    """Check all messages in all subscriptions."""
    entries: dict[Key, list[DeadLetter]] = defaultdict(list)
    for entry in book.history.dead_letters:
        entries[entry.group, entry.message_id].append(entry)
    for group in book.history.groups.values():
        blind = Blind.of(book, group)
        tally = Tally()
        for message in messages.values():
            if matches_any(group.channels, message.channel):
                key = group.name, message.id
                fate = Fate(group, message, book.leases.get(key, []), entries.pop(key, []))
                _check_attempts(fate, blind, book, verdict)
                _check_end(fate, group.name not in book.history.stuck, verdict)
                for entry in fate.entries:
                    _check_entry(fate, entry, book, verdict)
                tally.add(fate)
        _check_final(book.history, group, tally, verdict)
    for (name, message_id), strays in entries.items():
        verdict.add(
            Breach.DEAD, f"{name}: dead letter {strays[0].id} of {message_id}, which was not published"
        )
    _check_copies(book.history, verdict)


@dataclass(frozen=True, slots=True)
class Fate:
    """Everything known about one message in one subscription."""

    group: Group
    message: Message
    leases: list[Lease]
    entries: list[DeadLetter]

    @property
    def acked(self) -> bool:
        """Whether an ack was confirmed."""
        return any(lease.acked for lease in self.leases)

    @property
    def maybe_acked(self) -> bool:
        """Whether an ack without an answer may be stored. Only one of the last lease can be."""
        return bool(self.leases) and self.leases[-1].maybe_acked is not None

    def __str__(self) -> str:
        story = "; ".join(str(lease) for lease in self.leases) or "never delivered"
        return f"{self.group.name}: {self.message.id} ({story})"


@dataclass(slots=True)
class Blind:
    """The times in which a lease may have begun unseen. Each allows one unseen attempt, and one more for each
    `ack_wait` in it: the stream of a stopped member gets its expired deliveries again."""

    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    @staticmethod
    def of(book: Book, group: Group) -> Blind:
        """The times of one subscription: unanswered pulls, the ends of streams, and faults that hide
        leases."""
        blind = Blind()
        history, slack = book.history, book.slack
        for session in history.sessions.values():
            if session.group != group.name or (session.told and not session.stream):
                continue
            if session.ended_ns is not None or not session.told:
                blind._add(_blind_from(session, book), session.ended_ns, book, group)
        for fault in history.faults:
            if fault.hides:
                blind._add(fault.from_ns - slack.clock_ns, fault.to_ns, book, group)
        blind.begins.sort()
        blind.ends.sort()
        return blind

    def _add(self, from_ns: int, to_ns: int | None, book: Book, group: Group) -> None:
        times = 1 if to_ns is None else 1 + (to_ns - from_ns) // group.ack_wait_ns
        self.begins += [from_ns] * times
        self.ends += [NEVER if to_ns is None else to_ns + book.slack.blind_ns] * times

    def between(self, from_ns: int, to_ns: int) -> int:
        """How many unseen attempts are possible from one time to another."""
        return bisect_right(self.begins, to_ns) - bisect_left(self.ends, from_ns)


def _blind_from(session: Session, book: Book) -> int:
    """The time from which deliveries to this session may be unseen. A running member sees them at once."""
    if session.ended_ns is None:
        return session.began_ns
    start = session.ended_ns - book.slack.blind_ns
    stopped = book.pauses.get(session.member, [])
    frozen = (p.from_ns for p in stopped if p.from_ns < session.ended_ns and p.to_ns > start)
    return max(session.began_ns, min([start, *frozen]))


def _check_attempts(fate: Fate, blind: Blind, book: Book, verdict: Verdict) -> None:
    """Attempts must count 1, 2, 3, … in the order of time; one that was released does not count. A missing
    one needs a time in which it may be unseen."""
    limit, clock = fate.group.max_deliver, book.slack.clock_ns
    last, most, since, maybe_released = 0, 0, fate.message.created_ns - clock, False
    for lease in fate.leases:
        if lease.attempt == last and not maybe_released:
            verdict.add(Breach.ATTEMPTS, f"{fate}: {last} twice")
        elif lease.attempt > last + 1:
            _check_unseen(fate, last, lease.attempt, blind.between(since, lease.delivery.at_ns), verdict)
        if lease.earliest_ns + clock < since:
            verdict.add(Breach.ATTEMPTS, f"{fate}: {lease.attempt} began before {last}")
        last, since = lease.attempt, max(since, lease.earliest_ns)
        most, maybe_released = max(most, last), lease.maybe_released
        if lease.released is not None:
            last, since = last - 1, max(since, lease.released.asked_ns)
    nacked = [lease.attempt for lease in fate.leases if any(r.did("nacked") for r in lease.requests)]
    if limit and (most > fate.group.most_attempts or (len(nacked) >= limit and nacked[limit - 1] < most)):
        verdict.add(Breach.ATTEMPTS, f"{fate}: may have {limit}")
    for entry in fate.entries[:1]:
        if entry.attempts > last:
            _check_unseen(
                fate, last, entry.attempts + 1, blind.between(since, entry.created_ns + clock), verdict
            )


def _check_unseen(fate: Fate, last: int, following: int, blind: int, verdict: Verdict) -> None:
    """Check that no more attempts are missing between two than can be unseen."""
    missing = following - last - 1
    if missing > blind:
        verdict.add(Breach.ATTEMPTS, f"{fate}: {missing} missing after {last}, could have missed {blind}")


def _check_end(fate: Fate, drained: bool, verdict: Verdict) -> None:
    """A message must end with an ack or with one dead letter, and not with both."""
    if len(fate.entries) > 1:
        ids = ", ".join(str(entry.id) for entry in fate.entries)
        verdict.add(Breach.DEAD, f"{fate}: {len(fate.entries)} dead letters, {ids}")
    if fate.acked and fate.entries:
        verdict.add(
            Breach.DEAD, f"{fate}: acked, and dead letter {fate.entries[0].id} ({fate.entries[0].reason})"
        )
    if drained and not (fate.acked or fate.maybe_acked or fate.entries):
        verdict.add(Breach.LOST, str(fate))
    known = {entry.id for entry in fate.entries}
    for request in (request for lease in fate.leases for request in lease.requests):
        if request.entry is not None and request.entry not in known:
            verdict.add(Breach.DEAD, f"{fate}: dead letter {request.entry} is not in the list")
        elif request.dead_letter and request.did("nacked") and not fate.entries:
            verdict.add(Breach.DEAD, f"{fate}: rejected, and no dead letter")


def _check_entry(fate: Fate, entry: DeadLetter, book: Book, verdict: Verdict) -> None:
    """A dead letter must have the right reason and attempts, come at the right time, and be the end."""
    clock = book.slack.clock_ns
    if wrong := _wrong_reason(fate, entry, clock):
        verdict.add(Breach.DEAD, f"{fate}: dead letter {entry.id} as {entry.reason}: {wrong}")
    last = fate.leases[-1] if fate.leases else None
    if last and entry.attempts < last.attempt - bool(last.released or last.maybe_released):
        verdict.add(Breach.DEAD, f"{fate}: dead letter {entry.id} says {entry.attempts} attempts")
    for lease in fate.leases:
        if lease.delivery.at_ns + clock < entry.created_ns < lease.sure_until_ns - clock:
            verdict.add(Breach.DEAD, f"{fate}: dead letter {entry.id} while {lease} lived")
        elif lease.earliest_ns > entry.created_ns + clock:
            verdict.add(Breach.DEAD, f"{fate}: dead letter {entry.id}, and then {lease}")


def _wrong_reason(fate: Fate, entry: DeadLetter, clock: int) -> str:
    if entry.reason == "max_deliver":
        limit, most = fate.group.max_deliver, fate.group.most_attempts
        return "" if limit and limit <= entry.attempts <= most else f"{entry.attempts} attempts of {limit}"
    if entry.reason == "rejected":
        asked = (request for lease in fate.leases for request in lease.requests if request.dead_letter)
        return "" if any(request.outcome is not Outcome.FAIL for request in asked) else "no request for it"
    if entry.reason == "expired":
        end = expiry(fate.group, fate.message)
        if end is None:
            return "it never expires"
        return "" if entry.created_ns + clock >= end else f"{(end - entry.created_ns) / 1e9:.2f} s too early"
    return "no such reason in this drill"


def _check_copies(history: Groups, verdict: Verdict) -> None:
    """A dead-letter channel must have one copy of each entry and nothing else."""
    there = set(history.copies)
    owned: set[int] = set()
    for entry in history.dead_letters:
        wanted = history.groups[entry.group].dead_letter is not None and not entry.unroutable
        if wanted and entry.copy_id not in there:
            verdict.add(Breach.DEAD, f"{entry.group}: dead letter {entry.id} has no copy in its channel")
        if entry.copy_id is not None and entry.copy_id in owned:
            verdict.add(Breach.DEAD, f"{entry.group}: dead letter {entry.id} shares its copy {entry.copy_id}")
        if entry.copy_id is not None:
            owned.add(entry.copy_id)
    for copy in there - owned:
        verdict.add(Breach.DEAD, f"message {copy} in a dead-letter channel belongs to no dead letter")


@dataclass(slots=True)
class Tally:
    """Counts messages by how they ended."""

    messages: int = 0
    acked: int = 0
    maybe: int = 0
    dead: int = 0

    def add(self, fate: Fate) -> None:
        """Count one message."""
        self.messages += 1
        self.acked += fate.acked
        self.maybe += fate.maybe_acked and not fate.acked and not fate.entries
        self.dead += len(fate.entries)


def _check_final(history: Groups, group: Group, tally: Tally, verdict: Verdict) -> None:
    """The final counts must agree with the run. An ack without an answer may count or not."""
    for reading in history.readings:
        if reading.group != group.name or reading.source != FINAL:
            continue
        if reading.total != tally.messages:
            verdict.add(Breach.LEDGER, f"{reading}, and the log holds {tally.messages}")
        if not tally.acked <= reading.acked <= tally.acked + tally.maybe:
            verdict.add(Breach.LEDGER, f"{reading}, and {tally.acked} + {tally.maybe} perhaps were acked")
        if reading.dead_lettered != tally.dead:
            verdict.add(Breach.LEDGER, f"{reading}, and there are {tally.dead} dead letters")
