"""A stage for one engine over a log in memory, under virtual time: what is hinted is said by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, NewMessage
from subscriptions.domain.selection import Selection, select
from subscriptions.engine.entry import entry_of
from subscriptions.engine.hints import ChannelHint, Copy
from subscriptions.engine.live.engine import LiveEngine, LiveLimits
from subscriptions.engine.live.live_subscription import Chunk, Event, LiveSubscription, Ready
from subscriptions.engine.live.starts import Earliest, Start
from tests.contract.memory import MemoryAppender, MemoryReader
from tests.contract.memory_log import MemoryLog, Transaction
from tests.sim.loop import SeededLoop, run
from tests.sim.world import Wire, encode, read_frames

NAMESPACE = "default"
LOBBY = select(NAMESPACE, ("lobby",))
ALL = select(NAMESPACE, patterns=(">",))


class Stage:
    """`reads` counts what was asked of the log; while `down` it answers nothing."""

    def __init__(self, loop: SeededLoop, limits: LiveLimits | None = None) -> None:
        self.loop = loop
        self.log = MemoryLog()
        self.down = False
        self.reads: dict[str, int] = {}
        self.reader = MemoryReader(self.log, self._pause)
        self.engine = LiveEngine(self.reader, encode, clock=loop.time, limits=limits)
        self.running = asyncio.create_task(self.engine.run())

    async def _pause(self, step: str) -> None:
        self.reads[step] = self.reads.get(step, 0) + 1
        await asyncio.sleep(0.001)
        if self.down:
            raise GaplessError(Code.UNAVAILABLE, "down")

    async def store(self, channel: str = "lobby", count: int = 1, **more: str) -> list[int]:
        """Commit messages that nobody is told of; their ids."""
        new = tuple(NewMessage(channel, b"{}", **more) for _ in range(count))  # type: ignore[arg-type]
        (answer,) = await MemoryAppender(self.log).append([Append(NAMESPACE, new)])
        assert not isinstance(answer, GaplessError), answer
        return [position.id for position in answer.positions]

    def skip(self, count: int) -> None:
        """Ids that some transaction took and gave up."""
        self.log.sequence += count
        self.log.flush()

    def hint(self, *ids: int, copies: bool = True) -> None:
        """Tell of these messages, in this order, one hint each."""
        for id_ in ids:
            row, message = self.log.by_id[id_]
            entry = entry_of(NAMESPACE, message, encode)
            copy = Copy(entry.id, entry.seq, entry.type, entry.key, entry.body if copies else None, False)
            told = ChannelHint(NAMESPACE, row.name, row.id, 0, entry.seq - 1, [copy])
            self.engine.hear([(told, [entry] if copies else [])])

    async def subscribe(self, selection: Selection = LOBBY, start: Start | None = None) -> Reader:
        """A reader, from the beginning unless told otherwise."""
        return Reader(self, await self.engine.subscribe(selection, start or Earliest(), Wire(), 15.0))


class Reader:
    """Reads on by itself; `ids` is what it was given."""

    def __init__(self, stage: Stage, subscription: LiveSubscription) -> None:
        self.stage = stage
        self.subscription = subscription
        self.ids: list[int] = []
        self.channels: list[str] = []
        self.events: list[Event] = []
        self.arrived: list[float] = []
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            event = await self.subscription.next(self.stage.engine.read)
            if isinstance(event, Chunk):
                frames = read_frames(event.data)
                self.ids += [id_ for id_, _, _ in frames]
                self.channels += [channel for _, channel, _ in frames]
                self.arrived += [self.stage.loop.time()] * len(frames)
            else:
                self.events.append(event)

    @property
    def ready(self) -> bool:
        return any(isinstance(event, Ready) for event in self.events)

    def leave(self) -> int:
        """Go; the cursor to come back with."""
        self._task.cancel()
        self.stage.engine.unsubscribe(self.subscription)
        return self.ids[-1] if self.ids else self.subscription.cursor


async def begin(stage: Stage, channel: str) -> Transaction:
    """A publish that has taken its id and has not committed."""
    transaction = stage.log.begin([Append(NAMESPACE, (NewMessage(channel, b"{}"),))], create=True)
    await transaction.lock()
    await transaction.take()
    return transaction


def on_stage(play: Callable[[Stage], Awaitable[None]], limits: LiveLimits | None = None) -> None:
    """Tail one play under virtual time."""

    async def program() -> None:
        await play(Stage(loop, limits))

    loop = SeededLoop()
    run(program(), loop=loop)
