"""What durable subscriptions should do, in memory and with the time passed in, and many ways to do it wrong.

The made-up runs of the checker's own tests and the fake service stand on it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from enum import Enum

from load.groups.fates import expiry
from load.groups.history import SECOND, DeadLetter, Group, Message, Reading
from load.patterns import matches_any
from load.verdict import Breach


class Bug(Enum):
    """A planted mistake and the breaches one of which the checker must call it."""

    NO_MAX = "attempts go on", Breach.ATTEMPTS
    LOST_DEAD = "a dead letter is not kept", Breach.LOST
    DOUBLED_DEAD = "a dead letter is kept twice", Breach.DEAD
    EARLY_DEAD = "a dead letter after too few attempts", Breach.DEAD
    DEAD_WHILE_LEASED = "a dead letter while the last lease lives", Breach.DEAD, Breach.REFUSED
    DEAD_AFTER_ACK = "an acked message becomes a dead letter", Breach.DEAD
    ALIVE_AFTER_DEATH = "a dead letter is delivered again", Breach.DEAD
    LOST_COPY = "the dead-letter channel lacks a copy", Breach.DEAD
    DOUBLED_COPY = "the dead-letter channel has a copy twice", Breach.DEAD
    DOUBLE_LEASE = "a leased message is handed out again", Breach.DOUBLE_LEASE
    LOST_ACK = "an ack is answered and not kept", Breach.REDELIVERED
    STALE_ACK = "a receipt that ran out is believed", Breach.BELIEVED, Breach.REDELIVERED, Breach.LOST
    LATE_ACK = "a receipt is believed after its deadline", Breach.BELIEVED
    FOREIGN_ACK = "a receipt of another subscription is believed", Breach.BELIEVED
    REFUSED_ACK = "a live receipt is refused", Breach.REFUSED
    PREFETCH = "a session holds more than its limit", Breach.PREFETCH
    CROWD = "max_in_flight does not hold", Breach.PREFETCH
    SKIPPED_ATTEMPT = "an attempt is skipped", Breach.ATTEMPTS
    REPEATED_ATTEMPT = "an attempt is not counted", Breach.ATTEMPTS
    KEY_DISORDER = "a delayed message does not hold up its key", Breach.OUT_OF_ORDER
    TWO_OF_KEY = "two messages of a key in flight", Breach.OUT_OF_ORDER
    LATE = "delivered after its time", Breach.LATE
    LOST = "a message is never delivered", Breach.LOST
    LOST_ON_NACK = "a nack drops the message", Breach.LOST
    LOST_LEASE = "a lease ends and the message with it", Breach.LOST
    LOST_PRODUCT = "a transaction acks and publishes nothing", Breach.PRODUCT
    DOUBLED_PRODUCT = "a transaction publishes twice", Breach.PRODUCT
    TORN = "a transaction that is refused publishes", Breach.PRODUCT
    MISCOUNT = "an ack is not counted", Breach.LEDGER

    @property
    def breaches(self) -> tuple[Breach, ...]:
        """What the checker may call it."""
        names: tuple[Breach, ...] = self.value[1:]
        return names


SHOWN_BY_DELIVERY = frozenset({
    Bug.NO_MAX, Bug.PREFETCH, Bug.CROWD, Bug.SKIPPED_ATTEMPT, Bug.REPEATED_ATTEMPT, Bug.KEY_DISORDER,
    Bug.TWO_OF_KEY, Bug.LATE, Bug.DOUBLE_LEASE,
})  # fmt: skip
"""Mistakes that are there for anybody to see only when a member notes the delivery, and soon."""

MOST = 10
"""So often at most a mistake is made in one run."""


@dataclass(slots=True)
class Item:
    """One message in one subscription. `due_ns` says when it may be given out, while nobody has it."""

    message: Message
    attempt: int = 0
    nacks: int = 0
    due_ns: int = 0
    receipt: str = ""
    deadline_ns: int = 0
    session: int = 0
    done: bool = False
    lazy: bool = False
    """By mistake nobody looks at when it ends."""


@dataclass(frozen=True, slots=True)
class Handed:
    """What a claim gives for one message. `wrong`: a planted mistake gave it."""

    message: Message
    attempt: int
    receipt: str
    deadline_ns: int
    at_ns: int
    wrong: bool = False


@dataclass(slots=True)
class Queue:
    """One subscription's state. `given` remembers every receipt with its message; time has passed up to
    `passed_ns`."""

    group: Group
    items: dict[int, Item] = field(default_factory=dict)
    unsettled: list[Item] = field(default_factory=list)
    passed_ns: int = 0
    given: dict[str, int] = field(default_factory=dict)
    acked: int = 0
    dead: int = 0
    published: int = 0

    def open(self) -> list[Item]:
        """What is not settled, in order of ids."""
        self.unsettled = [item for item in self.unsettled if not item.done]
        return self.unsettled

    def leased(self) -> int:
        """How many are in flight."""
        return sum(bool(item.receipt) for item in self.open())


class Model:
    """The subscriptions and their log. Every call first lets pass what time has ended."""

    def __init__(
        self, groups: list[Group], chance: random.Random, bug: Bug | None = None, dice: float = 0.4
    ) -> None:
        self.queues = {group.name: Queue(group) for group in groups}
        self.log: list[Message] = []
        self.dead_letters: list[DeadLetter] = []
        self.copies: list[int] = []
        self.products: list[tuple[str, int]] = []
        self.applied = 0
        self.held: dict[str, int] = {}
        """Receipts that a living member has noted and not settled yet, and since when."""
        self._made = 0
        self._heads: dict[str, int] = {}
        self._chance, self._bug, self._dice = chance, bug, dice
        self._lease = 0

    def _buggy(self, bug: Bug) -> bool:
        """Whether to make this mistake here and now; counts it."""
        if self._bug is not bug or self._made >= MOST or self._chance.random() > self._dice:
            return False
        self._made += 1
        self.applied += bug not in SHOWN_BY_DELIVERY
        return True

    def noted(self, handed: Handed, now: int) -> None:
        """A member wrote this delivery down."""
        self.held[handed.receipt] = now
        self.applied += handed.wrong and now - handed.at_ns < SECOND // 20

    def publish(
        self, channel: str, key: str | None, now: int, number: int, ttl_ns: int | None = None
    ) -> Message:
        """Append one message."""
        seq = self._heads[channel] = self._heads.get(channel, 0) + 1
        expires = None if ttl_ns is None else now + ttl_ns
        message = Message(len(self.log) + 1, channel, seq, key, now, number, expires)
        self.log.append(message)
        for queue in self.queues.values():
            if matches_any(queue.group.channels, channel):
                queue.published += 1
                item = queue.items[message.id] = Item(message, due_ns=now)
                item.done = self._buggy(Bug.LOST)
                queue.unsettled.append(item)
        return message

    def claim(self, name: str, session: int, limit: int, now: int) -> list[Handed]:
        """Lease up to `limit` messages."""
        queue = self.queues[name]
        self.pass_time(queue, now)
        handed: list[Handed] = []
        busy: set[tuple[str, str | None]] = set()
        passed: set[tuple[str, str | None]] = set()
        room = queue.group.max_in_flight - queue.leased()
        for item in queue.open():
            lane = _lane(queue.group, item.message)
            if (lane is None or lane not in busy) and (twice := self._free(item, now)) is not None:
                over = len(handed) >= limit, len(handed) >= room
                if over[0] and not (self._is_full(queue, session, handed, now) and self._buggy(Bug.PREFETCH)):
                    break
                if over[1] and not (self._is_crowded(queue, now) and self._buggy(Bug.CROWD)):
                    break
                wrong = twice or any(over) or lane in passed
                handed.append(self._hand(queue, item, session, now, wrong))
            if lane is not None:
                (passed if self._lets_pass(item, now) else busy).add(lane)
        return handed

    def _free(self, item: Item, now: int) -> bool | None:
        """None: it cannot be handed out. True: it can, by mistake."""
        if item.receipt:
            twice = now < item.deadline_ns - SECOND and item.receipt in self.held
            return True if twice and self._buggy(Bug.DOUBLE_LEASE) else None
        return False if item.due_ns <= now else None

    def _lets_pass(self, item: Item, now: int) -> bool:
        """Whether an unsettled message lets a later one of its lane pass: never, unless by mistake."""
        if item.receipt:
            return item.receipt in self.held and self._buggy(Bug.TWO_OF_KEY)
        return item.due_ns > now + SECOND // 5 and self._buggy(Bug.KEY_DISORDER)

    def _hand(self, queue: Queue, item: Item, session: int, now: int, wrong: bool) -> Handed:
        self._lease += 1
        limit = queue.group.max_deliver
        item.attempt += 1
        if item.attempt > 1 and self._buggy(Bug.REPEATED_ATTEMPT):
            item.attempt, wrong = item.attempt - 1, True
        elif item.attempt < limit and self._buggy(Bug.SKIPPED_ATTEMPT):
            item.attempt, wrong = item.attempt + 1, True
        end = expiry(queue.group, item.message)
        wrong |= item.nacks >= limit or (end is not None and end + SECOND // 5 < now)
        item.receipt = f"{queue.group.name}:{item.message.id}:{self._lease}"
        item.session, item.deadline_ns = session, now + queue.group.ack_wait_ns
        queue.given[item.receipt] = item.message.id
        return Handed(item.message, item.attempt, item.receipt, item.deadline_ns, now, wrong)

    def pass_time(self, queue: Queue, now: int) -> None:
        """End the leases that ran out, and the messages that are of no use any more."""
        if queue.passed_ns == now:
            return
        queue.passed_ns = now
        for item in queue.open():
            if item.receipt and item.deadline_ns <= now and not self._overlooked(item, now):
                self._release(queue, item, now)
            elif item.receipt and self._is_held_last(queue, item, now) and self._buggy(Bug.DEAD_WHILE_LEASED):
                self._bury(queue, item, "max_deliver", now)
            end = expiry(queue.group, item.message)
            if item.receipt or item.done or item.lazy or end is None or end > now:
                continue
            if self._buggy(Bug.LATE):
                item.lazy = True
            else:
                self._bury(queue, item, "expired", now)

    def _overlooked(self, item: Item, now: int) -> bool:
        """Whether, by mistake, this lease outlives its deadline."""
        return self._bug is Bug.LATE_ACK and now < item.deadline_ns + SECOND

    def _is_full(self, queue: Queue, session: int, handed: list[Handed], now: int) -> bool:
        """Whether for certain all that this session was given is unsettled."""
        given = {one.receipt for one in handed}
        mine = (i for i in queue.open() if i.receipt and i.session == session and i.receipt not in given)
        return all(i.receipt in self.held and i.deadline_ns > now + SECOND // 2 for i in mine)

    def _is_crowded(self, queue: Queue, now: int) -> bool:
        """Whether for certain as many are in flight as may be."""
        sure = (i.receipt in self.held and i.deadline_ns > now + SECOND // 2 for i in queue.open())
        return sum(sure) >= queue.group.max_in_flight

    def _is_held_last(self, queue: Queue, item: Item, now: int) -> bool:
        """Whether somebody has certainly been working on the last attempt for a while, and may go on."""
        since = self.held.get(item.receipt, now)
        last = item.attempt == queue.group.max_deliver
        return last and since + SECOND // 6 < now < item.deadline_ns - SECOND // 4

    def _release(self, queue: Queue, item: Item, due_ns: int) -> None:
        """A lease has ended without an ack."""
        item.receipt, item.due_ns = "", due_ns
        limit = queue.group.max_deliver
        if self._buggy(Bug.LOST_LEASE):
            item.done = True
        elif limit and self._is_spent(item, limit):
            self._bury(queue, item, "max_deliver", due_ns)

    def _is_spent(self, item: Item, limit: int) -> bool:
        """Whether there is to be no other attempt."""
        if item.attempt >= limit:
            return not self._buggy(Bug.NO_MAX)
        return item.attempt == limit - 1 and self._buggy(Bug.EARLY_DEAD)

    def _bury(self, queue: Queue, item: Item, reason: str, now: int) -> int | None:
        """Make it a dead letter; its number."""
        item.receipt, item.done = "", True
        queue.dead += 1
        if self._buggy(Bug.LOST_DEAD):
            return None
        for _ in range(1 + self._buggy(Bug.DOUBLED_DEAD)):
            copy = 10_000 + len(self.dead_letters) if queue.group.dead_letter else None
            entry = DeadLetter(len(self.dead_letters) + 1, queue.group.name, item.message.id, reason,
                               item.attempt, now, copy)  # fmt: skip
            self.dead_letters.append(entry)
            if copy is not None and not self._buggy(Bug.LOST_COPY):
                self.copies += [copy] + [copy + 10_000] * self._buggy(Bug.DOUBLED_COPY)
        if self._buggy(Bug.ALIVE_AFTER_DEATH):
            item.done, item.due_ns, item.attempt = False, now + SECOND // 2, 0
        return entry.id

    def settle(self, kind: str, name: str, receipt: str, now: int, *, reject: bool = False,
               delay_ns: int = 0) -> tuple[str, int | None, int | None]:  # fmt: skip
        """The status, the dead letter a nack made, and the deadline after an extend."""
        queue = self.queues[name]
        self.pass_time(queue, now)
        queue.passed_ns = 0  # what is given back may have expired
        message_id = queue.given.get(receipt)
        if message_id is None:
            return ("acked" if self._buggy(Bug.FOREIGN_ACK) else "unknown"), None, None
        item = queue.items[message_id]
        if kind == "transact" and item.receipt == receipt:
            return self._transact(queue, item, now), None, None
        if item.receipt != receipt:
            self.products += [(name, message_id)] * (kind == "transact" and self._buggy(Bug.TORN))
            return self._settle_stale(queue, item, kind, now)
        if kind == "extend":
            item.deadline_ns = now + queue.group.ack_wait_ns
            return "extended", None, item.deadline_ns
        if kind == "ack":
            return self._ack(queue, item, now), None, None
        if kind == "release":
            item.receipt, item.due_ns, item.attempt = "", now + delay_ns, item.attempt - 1
            return "released", None, None
        return "nacked", self._nack(queue, item, now, reject, delay_ns), None

    def _settle_stale(
        self, queue: Queue, item: Item, kind: str, now: int
    ) -> tuple[str, int | None, int | None]:
        if item.done:
            return "unknown", None, None
        if kind == "ack" and item.receipt and self._buggy(Bug.STALE_ACK):
            return self._ack(queue, item, now), None, None
        return "lease_expired", None, None

    def _transact(self, queue: Queue, item: Item, now: int) -> str:
        """Ack and publish, both or nothing."""
        if not self._buggy(Bug.LOST_PRODUCT):
            product = queue.group.name, item.message.id
            self.products += [product] * (1 + self._buggy(Bug.DOUBLED_PRODUCT))
        return self._ack(queue, item, now)

    def _ack(self, queue: Queue, item: Item, now: int) -> str:
        if self._buggy(Bug.REFUSED_ACK):
            return "lease_expired"
        if self._buggy(Bug.LOST_ACK):
            return "acked"
        if item.deadline_ns + SECOND // 5 < now:
            self.applied += 1  # the mistake was to overlook the lease
        queue.acked += not self._buggy(Bug.MISCOUNT)
        if self._buggy(Bug.DEAD_AFTER_ACK):
            self._bury(queue, item, "max_deliver", now)
        item.done, item.receipt = True, ""
        return "acked"

    def _nack(self, queue: Queue, item: Item, now: int, reject: bool, delay_ns: int) -> int | None:
        limit = queue.group.max_deliver
        if reject:
            return self._bury(queue, item, "rejected", now)
        if limit and item.attempt >= limit and not self._buggy(Bug.NO_MAX):
            return self._bury(queue, item, "max_deliver", now)
        item.nacks += 1
        item.receipt, item.due_ns = "", now + delay_ns
        item.done = self._buggy(Bug.LOST_ON_NACK)
        return None

    def end_session(self, name: str, session: int, now: int) -> None:
        """A stream is gone: its leases end."""
        queue = self.queues[name]
        self.pass_time(queue, now)
        queue.passed_ns = 0
        for item in queue.open():
            if item.receipt and item.session == session:
                self._release(queue, item, now)

    def reading(self, name: str, now: int, source: str = "stats") -> Reading:
        """The books, and how many messages they must hold."""
        queue = self.queues[name]
        self.pass_time(queue, now)
        leased = queue.leased()
        ready = len(queue.open()) - leased
        count = queue.published
        return Reading(name, now, count, count, ready, leased, queue.acked, queue.dead, source=source)

    def settled(self) -> bool:
        """Whether nothing is left to do."""
        return not any(queue.open() for queue in self.queues.values())


def _lane(group: Group, message: Message) -> tuple[str, str | None] | None:
    if group.ordering == "channel":
        return message.channel, None
    if group.ordering == "key" and message.key is not None:
        return message.channel, message.key
    return None
