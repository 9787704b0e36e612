"""A small world for one seed: a log, two processes of the service, writers that speak SQL, clients that come
and go, and between them whatever may go wrong. The engine, the publisher and the watermark are the real ones.

What must hold: every client gets exactly what its selection holds after the cursor it began with, in order,
once; `ready` comes after all that was committed before it asked; and everything comes soon after the faults
have ended.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any
from unittest.mock import patch

from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.merge import Merge
from subscriptions.domain.model import Append, Message, NewMessage
from subscriptions.domain.selection import Selection, select
from subscriptions.engine.entry import Entry
from subscriptions.engine.hints import ChannelHint, Hints, entries_of
from subscriptions.engine.live import engine as live
from subscriptions.engine.live import feed, follower, live_subscription
from subscriptions.engine.live.engine import LiveEngine
from subscriptions.engine.live.live_subscription import (
    Chunk,
    Gap,
    HistoryChanged,
    LiveSubscription,
    Ready,
)
from subscriptions.engine.live.starts import After, Earliest, Last, Latest, Start
from subscriptions.engine.publisher import Publisher
from tests.contract.memory import MemoryAppender, MemoryReader
from tests.contract.memory_log import ConflictError, CrashedError, MemoryLog, Transaction
from tests.sim.loop import SeededLoop, run

NAMESPACE = "default"
SETTLE_S = 8.0
"""Virtual seconds after the last fault within which everybody has everything."""


class BrokenPromiseError(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True, slots=True)
class Faults:
    """What goes wrong in one seed, as probabilities and seconds; drawn anew for each."""

    lose: float
    double: float
    delay_s: float
    read_fails: float
    read_takes_s: float
    commit_takes_s: float
    roll_back: float
    cut_off: float
    crash: bool
    removal: bool
    fail_over: bool
    cramped: bool

    @classmethod
    def draw(cls, chance: random.Random) -> Faults:
        """Most seeds have some faults of each kind, and a fifth of each kind is missing."""

        def some(most: float) -> float:
            return 0.0 if chance.random() < 0.2 else chance.random() * most

        return cls(
            lose=1.0 if chance.random() < 0.1 else some(0.8),
            double=some(0.5),
            delay_s=some(0.5),
            read_fails=some(0.2),
            read_takes_s=some(0.1),
            commit_takes_s=some(0.05),
            roll_back=some(0.4),
            cut_off=some(0.2),
            crash=chance.random() < 0.15,
            removal=chance.random() < 0.3,
            fail_over=chance.random() < 0.15,
            cramped=chance.random() < 0.5,
        )


class Wire:
    """Writes messages so that a client of the test can read them back."""

    name = "test"
    shared = True

    def frame(self, entry: Entry) -> bytes:
        return entry.body


def encode(message: Message) -> bytes:
    """A message's id, channel and seq on a line."""
    return f"{message.id} {message.channel} {message.seq} {message.type} {message.key or ''}\n".encode()


def read_frames(data: bytes) -> list[tuple[int, str, int]]:
    """(id, channel, seq) of every frame."""
    rows = [line.split(" ") for line in data.decode().splitlines()]
    return [(int(row[0]), row[1], int(row[2])) for row in rows]


@dataclass(slots=True)
class Process:
    """One worker: an engine and a publisher, as the service wires them."""

    engine: LiveEngine
    publisher: Publisher


@dataclass(slots=True)
class Client:
    """A reader with the cursor it keeps, and what it was given since it began."""

    name: str
    selection: Selection
    began: int | None = None
    cursor: int = 0
    brought: bool = False
    """Its cursor is not of its own reading: what is committed below it comes first."""
    last: bool = False
    got: list[tuple[int, str, int]] = field(default_factory=list)
    readies: int = 0
    gaps: dict[str, int] = field(default_factory=dict)
    told: list[HistoryChanged] = field(default_factory=list)

    def take(self, data: bytes) -> None:
        """Messages, which must come after everything it has."""
        for message in read_frames(data):
            if message[0] <= self.cursor and not self.brought:
                raise BrokenPromiseError(
                    f"{self.name}: {message} came after {self.cursor}: doubled or out of order"
                )
            self.cursor, self.brought = message[0], False
            self.got.append(message)


class World:
    """Everything one seed runs."""

    def __init__(self, loop: SeededLoop, seed: int, **faults: bool) -> None:
        self.loop = loop
        self.chance = random.Random(seed)
        self.faults = Faults.draw(self.chance)
        self.faults = replace(self.faults, **faults)
        if self.faults.fail_over:
            # What retention removed is not undone with what a standby lacks.
            self.faults = replace(self.faults, removal=False)
        self.healed = False
        self.log = MemoryLog(lambda: 1_700_000_000_000_000 + int(loop.time() * 1_000_000))
        self.deleted: set[str] = set()
        self.channels = [f"room.{n}" for n in range(self.chance.randint(1, 4))]
        self.processes = [self._process(n) for n in range(2)]
        self.clients = [Client(f"client {n}", self._selection()) for n in range(self.chance.randint(1, 4))]

    # --- the parts

    def _process(self, number: int) -> Process:
        engine = LiveEngine(MemoryReader(self.log, self._read), encode, clock=self.loop.time)

        def committed(hints: list[tuple[ChannelHint, list[Entry]]]) -> None:
            engine.hear(hints)
            self._broadcast(number, engine.identity, Hints(str(number), [hint for hint, _ in hints], []))

        appenders = [MemoryAppender(self.log, pause=self._write) for _ in range(2)]
        return Process(engine, Publisher(appenders, encode, committed, current=engine.committed))

    def _selection(self) -> Selection:
        types = ("a",) if self.chance.random() < 0.2 else ()
        kind = self.chance.randrange(4)
        if kind == 0:
            return select(NAMESPACE, patterns=("room.*",), types=types)
        if kind == 1:
            return select(NAMESPACE, self.channels, types=types)
        return select(NAMESPACE, (self.chance.choice(self.channels),), types=types)

    def _broadcast(self, origin: int, identity: str, hints: Hints) -> None:
        """To the other process: lost, doubled, late, in any order, or without its copies. Those of another
        history go by another topic."""
        times = 1 + (self.chance.random() < self.faults.double)
        for _ in range(times):
            if self.chance.random() < self.faults.lose:
                continue
            for process in self.processes[:origin] + self.processes[origin + 1 :]:
                delay_s = self.chance.random() * self.faults.delay_s
                self.loop.call_later(delay_s, self._hear, process, identity, hints)

    def _hear(self, process: Process, identity: str, hints: Hints) -> None:
        if process.engine.identity != identity:
            return
        bare = self.chance.random() < 0.1
        process.engine.hear((hint, [] if bare else entries_of(hint)) for hint in hints.channels)

    async def _read(self, step: str) -> None:
        await asyncio.sleep(self.chance.random() * self.faults.read_takes_s)
        if not self.healed and self.chance.random() < self.faults.read_fails:
            raise GaplessError(Code.UNAVAILABLE, f"no {step} now")

    async def _write(self, step: str) -> None:
        await asyncio.sleep(self.chance.random() * self.faults.commit_takes_s)
        if step == "commit" and not self.healed and self.chance.random() < self.faults.roll_back:
            raise GaplessError(Code.UNAVAILABLE, "rolled back")

    # --- who acts

    async def publish(self, process: Process) -> None:
        """One publisher of a service, with a few messages at a time."""
        for _ in range(self.chance.randint(1, 6)):
            append = Append(NAMESPACE, tuple(self._new() for _ in range(self.chance.randint(1, 3))))
            with suppress(GaplessError):
                await process.publisher.publish(append)
            await asyncio.sleep(self.chance.random() * 0.2)

    def _new(self) -> NewMessage:
        return NewMessage(self.chance.choice(self.channels), b"{}", type=self.chance.choice("ab"))

    async def write_sql(self) -> None:
        """A user's own transactions: nobody tells of them, some take long, some roll back."""
        for _ in range(self.chance.randint(0, 4)):
            await asyncio.sleep(self.chance.random() * 0.3)
            transaction = self.log.begin([Append(NAMESPACE, (self._new(), self._new()))])
            try:
                await self._run_sql(transaction)
            except (ConflictError, CrashedError):
                transaction.rollback()

    async def _run_sql(self, transaction: Transaction) -> None:
        await transaction.lock()
        await transaction.take()
        await asyncio.sleep(self.chance.random() * self.chance.choice((0.01, 0.2, 1.0)))
        if self.chance.random() < max(0.3, self.faults.roll_back):
            transaction.rollback()
        else:
            transaction.commit()

    async def crash(self) -> None:
        """The database goes down once and comes back."""
        await asyncio.sleep(self.chance.random() * 1.5)
        self.log.crash()

    async def fail_over(self) -> None:
        """Another server becomes the primary, which lacks the newest commits, and the fences of crashes
        since: so it has more fences than its predecessor, as many others, or fewer. It may happen again."""
        for _ in range(self.chance.randint(1, 2)):
            await asyncio.sleep(self.chance.random())
            commits = len(self.log.commits)
            kept = commits - self.chance.randint(0, min(8, commits))
            for _ in range(self.chance.randint(0, 3)):
                self.log.crash()
                await asyncio.sleep(self.chance.random() * 0.3)
            noticed, older = self.chance.random() < 0.6, self.chance.random() < 0.5
            self.log.fail_over(len(self.log.commits) - kept, noticed=noticed, lacks_fence=older)

    async def remove(self) -> None:
        """Retention and an administrator: what they take is gone, and channels begin anew."""
        for _ in range(self.chance.randint(1, 6)):
            await asyncio.sleep(self.chance.random() * 0.5)
            place = (NAMESPACE, self.chance.choice(self.channels))
            row = self.log.rows.get(place)
            if row is None or row.lock.locked():
                continue
            if self.chance.random() < 0.2:
                self.log.delete(place)
                self.deleted.add(place[1])
            else:
                self.log.trim(place, self.chance.randint(0, 5))
                if self.chance.random() < 0.5:
                    self.log.purge()

    async def follow(self, client: Client) -> None:
        """Read, be cut off now and then, resume where it was, with either process."""
        start = self._start()
        client.last = isinstance(start, Last)
        while True:
            process = self.chance.choice(self.processes)
            try:
                before = self._visible(client.selection)
                subscription = await process.engine.subscribe(client.selection, start, Wire(), 15.0)
            except GaplessError:
                await asyncio.sleep(0.1)
                continue
            began = start.cursor if isinstance(start, After) else subscription.cursor
            if client.began is None:
                client.began, client.cursor, client.brought = began, began, isinstance(start, After)
            try:
                await self._listen(client, process, subscription, before, began)
            finally:
                process.engine.unsubscribe(subscription)
            start = After(client.cursor)
            if self.chance.random() < self.faults.cut_off:
                await asyncio.sleep(self.chance.random())

    def _start(self) -> Start:
        return self.chance.choice((Latest(), Earliest(), After(self.log.sequence // 2), Last(3)))

    async def _listen(
        self, client: Client, process: Process, subscription: LiveSubscription, before: list[int], began: int
    ) -> None:
        last = subscription._starts is not None
        while True:
            event = await subscription.next(process.engine.read)
            if isinstance(event, Chunk):
                client.take(event.data)
            elif isinstance(event, Ready):
                client.readies += 1
                had = {id_ for id_, _, _ in client.got}
                there = set(self._visible(client.selection))
                missed = [id_ for id_ in before if id_ > began and id_ in there - had and not last]
                if missed:
                    raise BrokenPromiseError(f"{client.name} was ready without {missed}")
            elif isinstance(event, Gap):
                self._hear_of_gap(client, event)
            elif isinstance(event, HistoryChanged):
                self._hear_of_loss(client, event)
            elif isinstance(event, Goodbye):
                return
            if not self.healed and self.chance.random() < self.faults.cut_off:
                return

    def _hear_of_loss(self, client: Client, said: HistoryChanged) -> None:
        # Who begins after an id that nobody gave out may hear of it after a crash too.
        if not (self.faults.fail_over or self.faults.crash):
            raise BrokenPromiseError(f"{client.name} heard of {said} where no history was lost")
        client.told.append(said)

    def _hear_of_gap(self, client: Client, gap: Gap) -> None:
        if not self.faults.removal:
            raise BrokenPromiseError(f"{client.name} heard of {gap} where nothing was removed")
        client.gaps[gap.channel] = max(gap.first_seq, client.gaps.get(gap.channel, 0))
        row = self.log.rows.get((NAMESPACE, gap.channel))
        if gap.channel in self.deleted or row is None or row.marks:
            return  # Counted by the nearest mark: a bound, not a number.
        missed = range(gap.first_seq - gap.missed, gap.first_seq)
        had = [seq for _, channel, seq in client.got if channel == gap.channel and seq in missed]
        if had:
            raise BrokenPromiseError(f"{client.name} was told of {gap} though it has {had}")

    def _visible(self, selection: Selection) -> list[int]:
        rows = [r for (_, name), r in self.log.rows.items() if name in selection.names or selection.patterns]
        return sorted(
            m.id for r in rows for m in r.after(0) if selection.admits(m.type, m.key, is_change=False)
        )

    # --- the whole

    def _mishaps(self) -> list[Coroutine[Any, Any, None]]:
        mishaps = [self.crash] * self.faults.crash + [self.remove] * self.faults.removal
        mishaps += [self.fail_over] * self.faults.fail_over
        return [mishap() for mishap in mishaps]

    async def live(self) -> None:
        """Act, heal, settle, check."""
        tasks = [asyncio.create_task(p.engine.run()) for p in self.processes]
        for process in self.processes:
            process.publisher.start()
        readers = [asyncio.create_task(self.follow(client)) for client in self.clients]
        writers = [self.publish(self.chance.choice(self.processes)) for _ in range(3)]
        await asyncio.gather(*writers, self.write_sql(), *self._mishaps())
        self.healed = True
        await asyncio.sleep(SETTLE_S)
        for task in tasks + readers:
            if task.done():
                task.result()
            task.cancel()
        for process in self.processes:
            await process.publisher.stop()
        self.check()

    def check(self) -> None:
        """Nobody lacks anything, has anything twice, or out of order."""
        for row in self.log.rows.values():
            kept = list(range(row.first_seq, row.last_seq + 1))
            assert [m.seq for m in row.after(0)] == kept, "the log itself is dense"
        for client in self.clients:
            if client.began is None:
                raise BrokenPromiseError(f"{client.name} never got in")
            had = [id_ for id_, _, _ in client.got]
            wanted = [id_ for id_ in self._visible(client.selection) if id_ > client.began]
            if client.got and len(set(had)) != len(had):
                raise BrokenPromiseError(f"{client.name} got something twice: {had}")
            first = had[0] if had else 0
            # `last` begins a channel at its own place: from its first message on nothing may be missing.
            missing = sorted(set(wanted) - set(had))
            if missing and not self._began_late(client, missing, first):
                raise BrokenPromiseError(f"{client.name} {client.selection} lacks {missing} of {wanted}")
            untold = [
                id_
                for id_ in had
                if id_ in self.log.lost and not any(t.first_id <= id_ <= t.last_id for t in client.told)
            ]
            if untold:
                raise BrokenPromiseError(f"{client.name} was not told that {untold} are lost")
            if not client.readies:
                raise BrokenPromiseError(f"{client.name} was never ready")

    def _began_late(self, client: Client, missing: list[int], first: int) -> bool:
        begins: dict[str, int] = {}
        for id_, channel, _ in client.got:
            begins.setdefault(channel, id_)
        if not client.last:
            return False
        # The newest ones of a channel, with which it was to begin, may be those that a failover took.
        none = sys.maxsize if self.log.lost else 0
        return all(id_ < begins.get(self.log.by_id[id_][1].channel, none) for id_ in missing)


@contextmanager
def cramped(chance: random.Random) -> Iterator[None]:
    """Every bound so small that these few messages meet it."""
    bounds: dict[ModuleType, dict[str, Any]] = {
        feed: {"PAGE_LIMIT": 3, "CHUNK_BYTES": 60, "PAGES_KEPT": 1, "MEMO_KEPT": 2},
        follower: {"SPAN_LIMIT": 3, "JUMP_SPANS": 2, "ROUTES_KEPT": 1},
        live: {"MIN_TAIL_BYTES": 1, "MAX_TAIL_BYTES": chance.choice((1, 1000, 5000)), "LINGER_S": 0.2},
        live_subscription: {"STARTS_LIMIT": 3, "CHUNK_BYTES": 60},
    }
    with ExitStack() as stack:
        for module, values in bounds.items():
            stack.enter_context(patch.multiple(module, **values))
        stack.enter_context(patch.object(Merge.__init__, "__defaults__", (chance.choice((1, 4)),)))
        yield


def play(seed: int, **faults: bool) -> str:
    """Tail one seed: its fingerprint. Raises BrokenPromiseError, or what the engine tripped over."""
    loop = SeededLoop(seed)
    world: list[World] = []

    async def program() -> None:
        world.append(World(loop, seed, **faults))
        with cramped(world[0].chance) if world[0].faults.cramped else nullcontext():
            await world[0].live()

    run(program(), loop=loop)
    got = [client.got for client in world[0].clients]
    return f"{loop.steps} {loop.trace:x} {loop.time():.6f} {got}"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(play(int(argument)))
