"""Durable subscriptions in memory, decided as the database decides them: a frontier, rows for what is under
way, lanes, leases with fences, attempts, dead letters. The clock and the log are those of a `MemoryLog`."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cache
from operator import attrgetter
from typing import Any

from subscriptions.domain.delivery import (
    AppliesTo,
    DeadLetter,
    Definition,
    Delivery,
    Loss,
    Reason,
    Receipt,
    Subscription,
    Touched,
)
from subscriptions.domain.model import Append, Appended, Message, NewMessage, Position
from subscriptions.domain.pattern import compile_pattern, is_pattern
from tests.contract.memory import MemoryAppender
from tests.contract.memory_burial import Death, Entry, copy_of, letter_of, published
from tests.contract.memory_log import MemoryLog
from tests.contract.memory_log import Row as LogRow
from tests.contract.memory_settings import changed, in_force

DEFAULTS = {
    "ack_wait": 30,
    "max_deliver": 5,
    "backoff": [1, 5, 30],
    "max_in_flight": 1000,
    "ordering": "key",
}
LOOKAHEAD = 10_000
END = "the lease ended without an ack"


class State(IntEnum):
    """Of a lane, the one at work comes first."""

    LEASED = 0
    DUE = 1
    WAITING = 2


Lane = tuple[int, str]


@dataclass(slots=True)
class Row:
    """A message under way. `at_us`: its deadline, or from when it may be handed out."""

    message: Message
    state: State
    at_us: int
    lane: Lane | None
    lease: int
    attempts: int = 0
    last_error: str | None = None
    holder: int = 0
    strikes: int = 0
    company: int | None = None
    member: int = 0
    entry: Entry | None = None
    """A replay gave it back: then it is the copy, whatever becomes of the log."""
    entered_us: int = 0
    """From when on the subscription's time counts for what a replay gave back."""

    def death(self, reason: Reason, error: str | None = None) -> Death:
        """It is given up; `error` where nothing was said before."""
        return Death(self.message, reason, self.attempts, self.last_error or error, self.entry)


@dataclass(slots=True)
class Queue:
    """One subscription, and its progress. Whoever decides holds the lock."""

    subscription: Subscription
    """With the settings in force."""
    own: dict[str, Any]
    frontier: int
    rows: dict[int, Row] = field(default_factory=dict)
    ahead: set[int] = field(default_factory=set)
    acked: list[int] = field(default_factory=list)
    """Ids, as they were settled."""
    fence: int = 0
    silent: int = 0
    gaps: dict[int, Loss] = field(default_factory=dict)
    """What retention took and no member was told, by channel."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __getitem__(self, setting: str) -> Any:
        return self.subscription.settings.get(setting)

    @property
    def single(self) -> bool:
        channels = self.subscription.channels
        return len(channels) == 1 and not is_pattern(channels[0])

    def follows(self, channel: str) -> bool:
        """Whether its messages are for this subscription."""
        return any(_compiled(text).matches(channel) for text in self.subscription.channels)

    def admits(self, message: Message) -> bool:
        """Whether the filter lets it through."""
        asked, kind = self["filter"] or {}, "none" if message.is_original else "only"
        has = {"types": message.type, "keys": message.key, "changes": kind}
        return all(name not in asked or value in asked[name] for name, value in has.items())

    def leased(self) -> list[Row]:
        return [row for row in self.rows.values() if row.state is State.LEASED]

    def held(self, receipt: Receipt, now_us: int) -> Row | None:
        """The row, while this very lease holds it."""
        row = self.rows.get(receipt.message_id)
        live = row is not None and row.state is State.LEASED and row.at_us > now_us
        return row if live and row is not None and row.lease == receipt.lease else None

    def lane_of(self, channel_id: int, message: Message) -> Lane | None:
        """What orders a message."""
        match self["ordering"]:
            case "key":
                return None if message.key is None else (channel_id, message.key)
            case "channel":
                return (channel_id, "")
            case _:
                return None

    def is_late(self, message: Message, now_us: int) -> bool:
        """Whether its time, or that of the subscription, is over."""
        ttl = self["message_ttl"]
        by_itself = message.expires_at_us is not None and message.expires_at_us <= now_us
        return by_itself or (ttl is not None and message.created_at_us + ttl * 1_000_000 <= now_us)

    def is_over(self, row: Row, now_us: int) -> bool:
        """The same of a row. The own time of what a replay gave back does not count any more."""
        if row.entry is None:
            return self.is_late(row.message, now_us)
        ttl = self["message_ttl"]
        return ttl is not None and row.entered_us + ttl * 1_000_000 <= now_us

    def is_excluded(self, row: Row) -> bool:
        """Whether the filter stops it. Somebody asked for what a replay gave back."""
        return row.entry is None and not self.admits(row.message)

    def is_spent(self, row: Row) -> bool:
        """Whether it may not be handed out again."""
        return bool(0 < self["max_deliver"] <= row.strikes)

    def lease(self, row: Row, fence: int, now_us: int, member: int) -> Delivery:
        """Hand it out."""
        row.state, row.lease, row.attempts, row.member = State.LEASED, fence, row.attempts + 1, member
        row.at_us = now_us + round(self["ack_wait"] * 1_000_000)
        return Delivery(row.message, fence, row.attempts, row.at_us, member, row.company)

    def went_silent(self, row: Row, held: int, *, alone: bool) -> None:
        """Its lease ended without a word, while so many were held."""
        row.strikes += alone
        row.company = held if row.company is None else max(1, min(row.company, held) // 2)

    def back(self, row: Row, at_us: int, error: str | None) -> None:
        """To be handed out again from `at_us`."""
        row.state, row.at_us, row.last_error = State.DUE, at_us, error

    def drop(self, rows: Iterable[Row], now_us: int) -> None:
        """Rows that are over; the next of their lanes have their turn."""
        gone = list(rows)
        for row in gone:
            del self.rows[row.message.id]
        self.promote({row.lane for row in gone}, now_us)

    def promote(self, lanes: Iterable[Lane | None], now_us: int) -> None:
        """In lanes where nothing is at work the first has its turn, or will have when its time comes."""
        for lane in {lane for lane in lanes if lane is not None}:
            others = sorted((r.state, r.message.id) for r in self.rows.values() if r.lane == lane)
            if others and others[0][0] is State.WAITING:
                first = self.rows[others[0][1]]
                first.state, first.at_us = State.DUE, max(first.at_us, now_us)

    def make_way(self, lane: Lane | None) -> None:
        """What is due and was not handed out lets those that wait before it in its lane go ahead."""
        rows = [row for row in self.rows.values() if row.lane == lane and lane is not None]
        first = min((row.message.id for row in rows if row.state is State.WAITING), default=None)
        for row in rows:
            if row.state is State.DUE and row.attempts == 0 and first is not None and first < row.message.id:
                row.state = State.WAITING


class MemoryQueues:
    """What the database holds of durable subscriptions."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.queues: dict[int, Queue] = {}
        self.entries: dict[int, Entry] = {}
        """Dead letters by id."""
        self.attendance: set[tuple[int, int]] = set()
        """(subscription, process): who has members of what."""
        self.gone: set[int] = set()
        """Processes that are no more."""
        self.fences = itertools.count(1)
        self._gap_numbers = itertools.count(1)
        self._ids = itertools.count(1)
        self._entry_ids = itertools.count(1)

    @property
    def letters(self) -> list[DeadLetter]:
        """All dead letters, by id."""
        return [self.entries[id_].letter for id_ in sorted(self.entries)]

    # --- definitions

    def subscribe(
        self, name: str, *channels: str, start: str = "earliest", namespace: str = "default", **settings: Any
    ) -> Subscription:
        """A new subscription."""
        subscription = Subscription(
            id=next(self._ids),
            namespace=namespace,
            name=name,
            channels=channels or (name,),
            start=start,
            paused=False,
            created_at_us=self.log.now_us(),
            settings={},
            origins={},
        )
        frontier = self.log.sequence if start == "latest" else int(start) if start.isdigit() else 0
        queue = self.queues[subscription.id] = Queue(subscription, changed({}, settings), frontier)
        self._refresh(queue)
        return queue.subscription

    def define(self, namespace: str, definition: Definition, *, paused: bool) -> None:
        """As an import does. A push without a secret keeps the one that is there."""
        queue, own = self.find(namespace, definition.name), dict(definition.settings)
        if queue is None:
            channels = definition.channels
            self.subscribe(definition.name, *channels, start=definition.start, namespace=namespace, **own)
            queue = self.find(namespace, definition.name)
            assert queue is not None
        elif "push" in own and "push" in queue.own:
            own["push"] = {**queue.own["push"], **own["push"]}
        queue.own = own
        queue.subscription = replace(queue.subscription, channels=definition.channels, paused=paused)
        self._refresh(queue)

    def follow_policies(self, namespace: str) -> None:
        """They have changed."""
        for (there, _), row in self.log.rows.items():
            if there == namespace:
                self.log.refresh(row)
        for queue in self.queues.values():
            if queue.subscription.namespace == namespace:
                self._refresh(queue)

    def _refresh(self, queue: Queue) -> None:
        namespace, name = queue.subscription.namespace, queue.subscription.name
        policies = [policy for (there, _), policy in self.log.policies.items() if there == namespace]
        settings, origins = in_force(policies, AppliesTo.SUBSCRIPTIONS, name, queue.own, DEFAULTS)
        queue.subscription = replace(queue.subscription, settings=settings, origins=origins)

    def find(self, namespace: str, name: str) -> Queue | None:
        for queue in self.queues.values():
            if (queue.subscription.namespace, queue.subscription.name) == (namespace, name):
                return queue
        return None

    def pause(self, name: str, paused: bool) -> None:
        queue = self.find("default", name)
        assert queue is not None
        queue.subscription = replace(queue.subscription, paused=paused)

    def change(self, name: str, settings: dict[str, Any]) -> None:
        """The settings given; what a filter says is followed by the next decision."""
        queue = self.find("default", name)
        assert queue is not None
        queue.own = changed(queue.own, settings)
        self._refresh(queue)

    def delete(self, name: str) -> None:
        queue = self.find("default", name)
        assert queue is not None
        self._forget(queue)
        del self.queues[queue.subscription.id]

    def seek(self, name: str, to: str) -> None:
        """To the beginning or the end."""
        queue = self.find("default", name)
        assert queue is not None
        self._forget(queue)
        queue.frontier = self.log.sequence if to == "latest" else 0

    def _forget(self, queue: Queue) -> None:
        """What is under way. What a replay gave back is a dead letter again."""
        for row in sorted(queue.rows.values(), key=lambda r: r.message.id):
            if row.entry is not None:
                id_, now_us = next(self._entry_ids), self.log.now_us()
                letter = replace(row.entry.letter, id=id_, created_at_us=now_us)
                self.entries[id_] = replace(row.entry, letter=letter)
        queue.rows.clear()
        queue.ahead.clear()

    # --- reading

    def matching(self, queue: Queue, settled: int) -> Iterator[tuple[int, Message]]:
        """(channel id, message) above the frontier in id order, as far as may be read."""
        found = [
            (row.id, message)
            for (namespace, name), row in self.log.rows.items()
            if namespace == queue.subscription.namespace and queue.follows(name)
            for message in row.after(queue.frontier)
            if message.id <= settled or queue.single
        ]
        yield from sorted(
            (f for f in found if queue.admits(f[1]) and f[1].id not in queue.ahead), key=lambda f: f[1].id
        )

    def complete_to(self, queue: Queue, settled: int) -> int:
        """How far `matching` is all there will ever be."""
        if not queue.single:
            return max(queue.frontier, settled)
        row = self.log.rows.get((queue.subscription.namespace, queue.subscription.channels[0]))
        return max(queue.frontier, row.last_id if row is not None else 0)

    def readable(self, queue: Queue, settled: int) -> int:
        """What lies above the last id taken is no watermark of several channels."""
        return settled if queue.single or settled <= self.log.sequence else 0

    def advance(self, queue: Queue, frontier: int) -> None:
        """Go on to there. What retention took on the way is lost."""
        for (namespace, name), row in self.log.rows.items():
            to = min(row.trimmed_id, frontier)
            if namespace == queue.subscription.namespace and queue.follows(name) and to > queue.frontier:
                passed = sum(m.id in queue.ahead for m in row.messages if queue.frontier < m.id <= to)
                missed = row.seq_at(to) - row.seq_at(queue.frontier) - passed
                self.note_gap(queue, row, row.seq_at(to) + 1, missed)
        queue.frontier = max(queue.frontier, frontier)
        queue.ahead = {id_ for id_ in queue.ahead if id_ > queue.frontier}

    # --- what was lost

    def note_gap(self, queue: Queue, row: LogRow, first_seq: int, missed: int) -> None:
        """For the next member that takes something."""
        if missed > 0:
            number = next(self._gap_numbers)
            old = queue.gaps.get(row.id) or Loss(row.name, 0, 0, row.id, number, number)
            queue.gaps[row.id] = replace(
                old, first_seq=max(old.first_seq, first_seq), missed=old.missed + missed, number=number
            )

    def removed(self, queue: Queue, message: Message) -> None:
        """It had a row here, and retention took it."""
        row = self.log.rows.get((queue.subscription.namespace, message.channel))
        if row is not None:
            self.note_gap(queue, row, row.first_seq, 1)

    def gaps(self, queue: Queue) -> tuple[Loss, ...]:
        """Of channels that are there, the oldest first."""
        there = {row.id for row in self.log.rows.values()}
        return tuple(sorted((g for g in queue.gaps.values() if g.channel_id in there), key=_number))

    def told(self, queue: Queue, losses: Iterable[Loss]) -> None:
        """What was lost since is left."""
        for loss in losses:
            known = queue.gaps.get(loss.channel_id)
            if known is None or known.since > loss.number:
                continue
            if known.number == loss.number:
                del queue.gaps[loss.channel_id]
            else:
                left = known.missed - loss.missed
                queue.gaps[loss.channel_id] = replace(known, missed=left, since=loss.number + 1)

    # --- deciding

    def purge(self, queue: Queue, settled: int) -> int:
        """Take away what is ready, delayed or waiting; how many."""
        now_us = self.log.now_us()
        self.refilter(queue, now_us)
        upto = self.complete_to(queue, min(settled, self.log.sequence))
        rows = [row for row in queue.rows.values() if row.state is not State.LEASED]
        fresh = [message for _, message in self.matching(queue, upto) if message.id <= upto]
        queue.drop(rows, now_us)
        self.advance(queue, upto)
        return len(rows) + len(fresh)

    def end_leases(self, queue: Queue, now_us: int) -> list[Death]:
        """What nobody acked in time is due again, or dead."""
        ended = [row for row in queue.leased() if row.at_us <= now_us]
        held = Counter(row.member for row in queue.leased())
        doubted = sum(row.company is not None for row in queue.rows.values())
        for row in ended:
            most = held[row.member] if row.company is None or row.member != 0 else doubted
            alone = row.company == 1 or (held[row.member] == 1 and row.lease > queue.silent)
            queue.went_silent(row, most, alone=alone)
        queue.silent = queue.fence if ended else queue.silent
        last = [row for row in ended if queue.is_spent(row)]
        for row in ended:
            if row not in last:
                queue.back(row, now_us, END)
        queue.drop(last, now_us)
        return [row.death(Reason.MAX_DELIVER, END) for row in last]

    def refilter(self, queue: Queue, now_us: int) -> None:
        """What the filter does not let through is over, unless it is leased."""
        rows = [row for row in queue.rows.values() if row.state is not State.LEASED]
        queue.drop([row for row in rows if queue.is_excluded(row)], now_us)

    def is_removed(self, row: Row) -> bool:
        """Whether retention took its message."""
        return row.entry is None and row.message.id not in self.log.by_id

    def verdict(self, queue: Queue, row: Row, now_us: int) -> Death | None:
        """Why a row that is due is not handed out."""
        reason = None
        if queue.is_over(row, now_us):
            reason = Reason.EXPIRED
        elif queue.is_spent(row):
            reason = Reason.MAX_DELIVER
        return None if reason is None else row.death(reason)

    # --- dead letters

    async def bury(self, queue: Queue, deaths: list[Death]) -> tuple[dict[int, int], tuple[Touched, ...]]:
        """Make dead letters: their ids by message id; and where copies were published. What retention took
        leaves nothing behind."""
        keep: bool | float = (queue.subscription.settings.get("dead_letter") or {}).get("keep", True)
        made: list[tuple[Entry, str | None]] = []
        for death in deaths:
            if death.entry is None and death.message.id not in self.log.by_id:
                self.removed(queue, death.message)
            else:
                made.append(self._entry(queue, death))
        copies = [copy_of(entry.letter, target) for entry, target in made if target is not None]
        positions = iter(await self._publish(queue.subscription.namespace, copies))
        for entry, target in made:
            letter = entry.letter
            if target is not None:
                letter = replace(letter, published=published(next(positions)))
                if keep is False:
                    continue
            keep_s = None if letter.unroutable or isinstance(keep, bool) else keep
            self.entries[letter.id] = replace(entry, letter=letter, keep_s=keep_s)
        ids = {
            entry.letter.message.id: entry.letter.id for entry, _ in made if entry.letter.id in self.entries
        }
        return ids, self._touched(queue, {copy.channel for copy in copies})

    def tidy(self) -> None:
        """Remove dead letters whose time is over."""
        now_us = self.log.now_us()
        for entry in list(self.entries.values()):
            if entry.keep_s is not None and entry.letter.created_at_us + entry.keep_s * 1e6 <= now_us:
                del self.entries[entry.letter.id]

    def _entry(self, queue: Queue, death: Death) -> tuple[Entry, str | None]:
        known = death.entry.channel_id if death.entry is not None else None
        channel_id = self.log.by_id[death.message.id][0].id if known is None else known
        letter, target = letter_of(next(self._entry_ids), queue.subscription, death, self.log.now_us())
        return Entry(queue.subscription.namespace, channel_id, letter), target

    async def _publish(self, namespace: str, copies: list[NewMessage]) -> tuple[Position, ...]:
        if not copies:
            return ()
        (answer,) = await MemoryAppender(self.log).append([Append(namespace, tuple(copies))])
        assert isinstance(answer, Appended), answer
        return answer.positions

    def _touched(self, queue: Queue, channels: set[str]) -> tuple[Touched, ...]:
        namespace = queue.subscription.namespace
        rows = [self.log.rows[namespace, channel] for channel in sorted(channels)]
        return tuple(Touched(namespace, row.name, row.id, row.last_id, row.last_seq) for row in rows)

    def give_back(self, queue: Queue, entry: Entry, now_us: int, due_us: int) -> None:
        """Replay it. If it is under way it begins again there: a lease that is out is its first attempt."""
        message = entry.letter.message
        row = queue.rows.get(message.id)
        if row is None:
            lane = queue.lane_of(entry.channel_id, message)
            state = State.DUE if lane is None else State.WAITING
            row = Row(message, state, due_us, lane, 0, last_error=entry.letter.last_error)
            queue.rows[message.id] = row
        if message.id > queue.frontier:
            queue.ahead.add(message.id)
        row.attempts, row.strikes, row.company = int(row.state is State.LEASED), 0, None
        row.entry, row.entered_us = row.entry or entry, due_us
        queue.make_way(row.lane)
        queue.promote([row.lane], now_us)


_compiled = cache(compile_pattern)
_number = attrgetter("number")
