"""Made-up runs of durable subscriptions: members that work, dawdle, crash and freeze, in virtual time.

`play(seed)` keeps every promise; `play(seed, bug)` breaks one. What is recorded is what the storm's
members would record: nobody notes what was on the wire when its member was killed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush

from load.groups.history import (
    FINAL,
    SECOND,
    Delivery,
    Fault,
    Group,
    Groups,
    Pause,
    Publish,
    Request,
    Session,
)
from load.history import Outcome
from tests.load.groups_model import Bug, Handed, Model

MS = SECOND // 1000
CHANNELS = ("storm.a", "storm.b")
CALM = 9 * SECOND
"""From here on nothing is published and nobody crashes any more."""
END = 120 * SECOND

GROUPS = [
    Group("keys", ("storm.*",), "key", max_in_flight=8),
    Group("lanes", ("storm.a",), "channel", dead_letter="dead.lanes"),
    Group("free", ("storm.>",), "none", ttl_ns=5 * SECOND, dead_letter="dead.free", max_in_flight=6),
]
MEMBERS = [("keys", True, 3), ("keys", False, 2), ("keys", True, 4), ("lanes", False, 3), ("lanes", True, 3),
           ("free", True, 3), ("free", True, 4), ("free", False, 4)]  # fmt: skip


@dataclass(slots=True)
class Member:
    """One member, over all its lives. `life` counts them; whatever belongs to an earlier life is void."""

    name: str
    group: str
    stream: bool
    limit: int
    life: int = 0
    session: Session | None = None
    stopped_until: int = 0


@dataclass(slots=True)
class Play:
    """One run being made up."""

    chance: random.Random
    model: Model
    run: Groups
    now: int = SECOND
    events: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    steps: int = 0
    crashes: bool = True
    releases: bool = False
    members: list[Member] = field(default_factory=list)
    waiting: dict[int, Member] = field(default_factory=dict)
    """Sessions, as the server knows them, that would take more; by number."""

    def at(self, delay: int, do: Callable[[], None]) -> None:
        """Do something later."""
        self.steps += 1
        heappush(self.events, (self.now + delay, self.steps, do))

    def wire(self) -> int:
        """How long something travels."""
        return self.chance.randint(1 * MS, 12 * MS)

    # --- the server's side

    def serve(self, group: str) -> None:
        """Give out what there is to whoever would take it."""
        queue = self.model.queues[group]
        for number in list(self.waiting):
            session = self.run.sessions[number]
            if session.group != group:
                continue
            if not session.stream:
                room = session.limit
            else:
                room = session.limit - sum(i.session == number and bool(i.receipt) for i in queue.open())
            handed = self.model.claim(session.group, number, room, self.now) if room > 0 else []
            if not session.stream and handed:
                member = self.waiting.pop(number)
            elif handed:
                member = self.waiting[number]
            else:
                continue
            self.at(self.wire(), self._receiver(member, session, handed))

    def _receiver(self, member: Member, session: Session, handed: list[Handed]) -> Callable[[], None]:
        life = member.life

        def receive() -> None:
            if member.life != life or session.ended_ns is not None:
                return
            if member.stopped_until > self.now:
                self.at(member.stopped_until - self.now, receive)
                return
            if not session.stream:
                session.told, session.ended_ns = True, self.now
                self.at(self.chance.randint(1, 50) * MS, lambda: self.ask(member, life))
            for one in handed:
                self.note(member, session, one)

        return receive

    def drop(self, number: int) -> None:
        """The server notices that a connection is gone."""
        self.waiting.pop(number, None)
        session = self.run.sessions[number]
        if session.stream:
            self.model.end_session(session.group, number, self.now)
        self.serve(session.group)

    # --- the members' side

    def ask(self, member: Member, life: int) -> None:
        """Open a stream, or pull."""
        if member.life != life:
            return
        number = len(self.run.sessions) + 1
        session = Session(number, member.group, member.name, member.stream, member.limit, self.now)
        session.told = member.stream
        self.run.sessions[number] = member.session = session
        self.at(self.wire(), lambda: self._opened(number, member, life))

    def _opened(self, number: int, member: Member, life: int) -> None:
        if member.life == life:
            self.waiting[number] = member
            self.serve(member.group)

    def note(self, member: Member, session: Session, one: Handed) -> None:
        """Write a delivery down, then decide what to do with it."""
        message = one.message
        given = Delivery(session.group, session.number, message.id, message.channel, message.seq, message.key,
                         one.attempt, one.receipt, one.deadline_ns, self.now)  # fmt: skip
        self.run.deliveries.append(given)
        self.model.noted(one, self.now)
        poison, calm = message.number % 25 == 0, self.now > CALM
        if poison:
            what = self.chance.choice(("crash", "nack", "nack")) if self.crashes and not calm else "nack"
        else:
            weights = (80, 6, 6, 5 * (self.crashes and not calm), 5 * (not calm), 4)
            what = self.chance.choices(("ack", "nack", "late", "crash", "freeze", "reject"), weights)[0]
        life = member.life
        work = self.chance.randint(5, 250) * MS + (what == "late") * self.chance.randint(1700, 2600) * MS
        self.at(work, lambda: self._work(member, life, given, what))

    def _work(self, member: Member, life: int, given: Delivery, what: str) -> None:
        if member.life != life:
            return
        if member.stopped_until > self.now:
            self.at(member.stopped_until - self.now, lambda: self._work(member, life, given, what))
        elif what == "crash":
            self.kill(member)
        elif what == "freeze":
            self._freeze(member)
            self._work(member, life, given, "ack")
        elif self.chance.random() < 0.1:
            self.send(member, "extend", given, False)
            self.at(self.chance.randint(100, 1900) * MS, lambda: self._work(member, life, given, "ack"))
        else:
            kind = self.chance.choice(("ack", "ack", "transact")) if what in ("ack", "late") else "nack"
            if self.releases and what == "nack" and self.chance.random() < 0.4:
                kind = "release"
            self.send(member, kind, given, what == "reject")
            if self.chance.random() < 0.05:
                self.at(300 * MS, lambda: self._again(member, life, given))

    def _again(self, member: Member, life: int, given: Delivery) -> None:
        """A receipt that was settled is sent once more, and to the wrong subscription, and a forged one."""
        if member.life == life and member.stopped_until <= self.now:
            self.send(member, "ack", given, False)
            other = "free" if given.group != "free" else "keys"
            self.send(member, "ack", given, False, other)

    def send(self, member: Member, kind: str, given: Delivery, reject: bool, group: str = "") -> None:
        """One request; the answer may be lost before or after the server has acted on it."""
        request = Request(kind, group or given.group, given.receipt, self.now, dead_letter=reject)
        self.run.requests.append(request)
        self.model.held.pop(given.receipt, None)
        lost, life = self.chance.random(), member.life
        delay = self.chance.choice((0, 200, 500)) * MS

        def act() -> None:
            said = self.model.settle(
                kind, request.group, given.receipt, self.now, reject=reject, delay_ns=delay
            )
            if lost > 0.04:
                self.at(self.wire(), lambda: answer(*said))
            self.serve(request.group)

        def answer(status: str, entry: int | None, deadline_ns: int | None) -> None:
            if member.life == life:
                wait = max(0, member.stopped_until - self.now)
                request.status, request.outcome = status, Outcome.OK
                request.answered_ns, request.entry = self.now + wait, entry
                request.deadline_ns = deadline_ns

        if lost > 0.02:
            self.at(self.wire(), act)

    def _freeze(self, member: Member) -> None:
        until = self.now + self.chance.randint(1500, 3500) * MS
        self.run.pauses.append(Pause(member.name, self.now, until))
        member.stopped_until = until
        self.let_go(member)

    def let_go(self, member: Member) -> None:
        """Nobody can be sure of what this member holds any more."""
        for given in self.run.deliveries:
            if self.run.sessions[given.session].member == member.name:
                self.model.held.pop(given.receipt, None)

    def kill(self, member: Member) -> None:
        """Kill -9: what it has not written down is gone. It is started again soon."""
        self.let_go(member)
        member.life += 1
        member.stopped_until = 0
        session, life = member.session, member.life
        if session is not None and session.ended_ns is None:
            session.ended_ns, session.killed = self.now, True
            self.at(self.wire(), lambda: self.drop(session.number))
        self.at(self.chance.randint(30, 200) * MS, lambda: self.ask(member, life))

    def kill_worker(self) -> None:
        """The service's process dies: every session ends, seen by its member a little later."""
        began, back = self.now, self.now + 400 * MS
        self.run.faults.append(Fault("worker", began, back))
        for member in self.members:
            session = member.session
            if session is not None and session.ended_ns is None and member.stopped_until <= self.now:
                self.let_go(member)
                self.drop(session.number)
                member.life += 1
                session.ended_ns = self.now + self.wire()
                self.at(back - self.now, partial(self.ask, member, member.life))

    # --- the whole run

    def publish(self, number: int) -> None:
        """One message; the answer of one in thirty is lost."""
        channel, key = self.chance.choice(CHANNELS), self.chance.choice(("k1", "k2", "k3", None))
        ttl = 4 * SECOND if self.chance.random() < 0.05 else None
        message = self.model.publish(channel, key, self.now, number, ttl)
        known = self.chance.random() > 0.03
        outcome = Outcome.OK if known else Outcome.INFO
        self.run.publishes.append(Publish(number, channel, outcome, message.id if known else 0))
        for name in self.model.queues:
            self.serve(name)

    def sweep(self) -> None:
        """Once in a while time passes by itself; once a second the books are read."""
        for name, queue in self.model.queues.items():
            self.model.pass_time(queue, self.now)
            self.run.readings.append(self.model.reading(name, self.now))
            self.serve(name)
        if self.now < END and not (self.now > CALM and self.model.settled()):
            self.at(250 * MS, self.sweep)


def play(
    seed: int, bug: Bug | None = None, messages: int = 70, *, releases: bool = False
) -> tuple[Groups, int]:
    """One made-up run, and how often the bug was at work in it."""
    chance = random.Random(seed)
    model = Model(GROUPS, random.Random(seed + 1), bug)
    run = Groups(seed, groups={group.name: group for group in GROUPS})
    play = Play(chance, model, run, crashes=bug is not Bug.SKIPPED_ATTEMPT, releases=releases)
    play.members = [Member(f"{group}/{n}", group, s, limit) for n, (group, s, limit) in enumerate(MEMBERS)]
    for member in play.members:
        play.at(play.wire(), partial(play.ask, member, 0))
    for number in range(1, messages + 1):
        play.at(chance.randint(0, CALM - SECOND), partial(play.publish, number))
    play.at(5 * SECOND, play.kill_worker)
    play.at(100 * MS, play.sweep)
    while play.events and play.now < END and not (play.now > CALM and model.settled()):
        play.now, _, do = heappop(play.events)
        do()
    run.stuck = [] if bug is not None else [name for name, queue in model.queues.items() if queue.open()]
    run.messages, run.dead_letters, run.copies = list(model.log), model.dead_letters, model.copies
    run.products = model.products
    run.readings += [model.reading(name, play.now, FINAL) for name in model.queues]
    return run, model.applied
