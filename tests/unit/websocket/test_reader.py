"""A subscription over WebSocket, on many seeds: a reader that was told that it goes on misses nothing, and
one that was told that it does not had something to miss."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import msgspec
import pytest

from app.faces.live import LiveDependencies
from app.faces.websocket import codes
from app.faces.websocket.codes import Ending
from app.faces.websocket.framing import FRAMES
from app.faces.websocket.reader import Reader
from app.message.message import encode_message
from load.websocket import Messages
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.model import Append, NewMessage
from subscriptions.domain.selection import select
from subscriptions.engine.entry import entry_of
from subscriptions.engine.exchange import Exchange
from subscriptions.engine.hints import ChannelHint, Copy
from subscriptions.engine.live.engine import LiveEngine
from subscriptions.engine.live.live_subscription import LiveSubscription
from subscriptions.engine.live.starts import AfterSeq, Latest, Opened
from subscriptions.engine.presence import Presence
from tests.contract import showing
from tests.contract.memory import MemoryAppender, MemoryReader
from tests.contract.memory_bus import MemoryHub
from tests.contract.memory_log import MemoryLog
from tests.contract.memory_presence import MemoryPresenceHub
from tests.patience import cancel
from tests.sim.loop import SeededLoop, run

LOBBY = ("default", "lobby")
HALL = ("default", "hall")
STEPS = 60


class World:
    """A log with one channel, an engine over it, and chance."""

    def __init__(self, loop: SeededLoop, seed: int) -> None:
        self.chance = random.Random(seed)
        self.log = MemoryLog()
        self.forgetful = self.chance.random() < 0.3
        """Whether the names of deleted channels are forgotten so soon that readers notice."""
        if self.forgetful:
            self.log.names_kept = self.chance.randint(0, 2)
        self.deletions = 0
        """How often the channel was deleted, always with messages in it."""
        self.reader = MemoryReader(self.log, self._pause)
        self.engine = LiveEngine(self.reader, encode_message, clock=loop.time)
        exchange = Exchange(self.engine, MemoryHub().open, now_us=lambda: 0)
        hub = MemoryPresenceHub()
        self.presence = Presence(self.engine, exchange, hub.open, clock=loop.time, now_us=lambda: 0)
        exchange.listen(presence=self.presence.hear)
        self.running = asyncio.create_task(self.engine.run())
        self.calm = False
        self.stored: dict[int, tuple[int, int]] = {}
        """Every message that ever was: its channel's id, and its seq."""
        self.faults: list[str] = []

    async def _pause(self, step: str) -> None:
        await asyncio.sleep(self.chance.random() * 0.02)

    async def publish(self) -> None:
        """Commit some messages; mostly their hint arrives, sometimes late."""
        new = tuple(NewMessage("lobby", b"1") for _ in range(self.chance.randint(1, 3)))
        (answer,) = await MemoryAppender(self.log).append([Append("default", new)])
        assert not isinstance(answer, GaplessError), answer
        self.stored |= {p.id: (answer.before["lobby"][0], p.seq) for p in answer.positions}
        if self.chance.random() < 0.3:
            return
        if self.chance.random() < 0.3:
            await asyncio.sleep(self.chance.random())
        for position in answer.positions:
            row, message = self.log.by_id.get(position.id, (None, None))
            if row is None or message is None or row.deleted:
                continue
            entry = entry_of("default", message, encode_message)
            copy = Copy(entry.id, entry.seq, entry.type, entry.key, entry.body)
            self.engine.hear([(ChannelHint("default", "lobby", row.id, 0, entry.seq - 1, [copy]), [entry])])

    async def step(self) -> None:
        """Do something to the channel."""
        kind = self.chance.random()
        row = self.log.rows.get(LOBBY)
        if kind < 0.08:
            self.delete()
        elif kind < 0.12:
            for _ in range(self.chance.randint(1, 3)):
                self.delete()
                await self.publish()
        elif kind < 0.20 and row is not None and row.last_seq > 0:
            self.log.trim(LOBBY, self.chance.randint(1, 4))
        elif kind < 0.35:
            await MemoryAppender(self.log).append([Append("default", (NewMessage("hall", b"1"),))])
            self.log.delete(HALL)
        else:
            await self.publish()
        await asyncio.sleep(self.chance.random() * 0.3)

    def delete(self) -> None:
        """Delete the channel, if it is there."""
        self.deletions += self.log.delete(LOBBY)


class FakeClient:
    """A client of the protocol: it keeps an offset and an epoch, and believes what it is told."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.framing = FRAMES
        self.epoch, self.offset = "", 0
        self.known = False
        self.channel_id = 0
        """The channel of the last publication, which the test knows and the client does not."""
        self.got = self.held = self.refreshed = 0
        self.asked_at = self.opened_at = 0
        """How often the channel had been deleted when it last asked, and when it was last answered."""
        self._answered_to = 0
        self._ended = asyncio.Event()
        self._messages = Messages()

    async def run(self) -> None:
        """Subscribe, read for a while, and subscribe again."""
        while True:
            start = AfterSeq(self.offset, self.epoch) if self.known else Latest()
            self._ended.clear()
            self._messages = Messages()
            world = self.world
            self.asked_at = world.deletions
            reader = Reader("lobby", False, self, self.opened)
            parts = LiveDependencies(world.engine, world.reader, world.presence)
            selection, client = select("default", ("lobby",)), showing.client()
            reader.task = asyncio.create_task(
                reader.follow(parts, selection, start, client, self.refused, join_leave=True)
            )
            life_s = None if self.world.calm else self.world.chance.expovariate(1 / 1.5)
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(life_s):
                        await self._ended.wait()
            finally:
                reader.stop()
                await cancel(reader.task)

    async def opened(self, subscription: LiveSubscription) -> None:
        found = subscription.opened
        assert isinstance(found, Opened)
        if self.known and found.holds:
            if found.seq != self.offset:
                self.world.faults.append(f"{found} for {self.offset} of {self.epoch}")
            if self.asked_at > self.opened_at:
                self.world.faults.append(f"{found} for {self.epoch} of a channel that was deleted")
            self.held += 1
        else:
            if self.known and not self._may_have_missed():
                self.world.faults.append(f"{found} for {self.offset} of {self.epoch}, which lacks nothing")
            # It is told that it starts anew: whatever it knew of channels does not count.
            self.channel_id = 0
            self.refreshed += 1
        self.known, self.epoch, self.offset = True, str(found.epoch), found.seq
        self._answered_to, self.opened_at = self.asked_at, self.world.deletions

    def _may_have_missed(self) -> bool:
        """Whether the channel was deleted since its position was read, or retention has passed that."""
        row = self.world.log.rows.get(LOBBY)
        trimmed = row is not None and row.first_seq - 1 > self.offset
        return self.world.forgetful or trimmed or self.world.deletions > self._answered_to

    def refused(self, error: GaplessError) -> None:
        self._ended.set()

    def take(self, frames: bytes) -> None:
        for message in self._messages.feed(frames):
            pub = msgspec.json.decode(message)["push"]["pub"]
            channel_id, seq = self.world.stored[pub["id"]]
            faults = self.world.faults
            if not pub["offset"] == pub["seq"] == seq == self.offset + 1:
                faults.append(f"after {self.offset} of {self.epoch} came {pub}, which is {seq}")
            if self.channel_id not in (0, channel_id):
                faults.append(f"{pub} is of channel {channel_id} and not {self.channel_id}")
            self.channel_id, self.offset = channel_id, pub["seq"]
            self.got += 1

    # What a subscription asks of its client.

    def write_chunk(self, frames: bytes) -> bool:
        if self.world.chance.random() < 0.3:
            return False
        self.take(frames)
        return True

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        await asyncio.sleep(self.world.chance.random() * 0.02)
        yield

    def write(self, frames: bytes) -> None:
        self.take(frames)

    def queue(self, size_bytes: int) -> None:
        raise AssertionError("it consumes nothing")

    def say(self, text: bytes) -> None:
        assert {"ready", "gap"} & set(msgspec.json.decode(text)["push"])

    def close(self, ending: Ending) -> None:
        raise AssertionError(ending)

    def unsubscribed(self, channel: str, ending: Ending) -> None:
        assert ending is codes.INSUFFICIENT_STATE
        self._ended.set()


def play(seed: int) -> FakeClient:
    """One world. Its readers end with all that there is."""

    async def program() -> FakeClient:
        world = World(loop, seed)
        readers = [FakeClient(world) for _ in range(3)]
        tasks = [asyncio.create_task(reader.run()) for reader in readers]
        for _ in range(STEPS):
            await world.step()
        world.calm = True
        await world.publish()
        await asyncio.sleep(30)
        head = world.log.rows[LOBBY].last_seq
        assert world.faults == []
        for task in tasks:
            assert not task.done(), task.exception()
        assert [reader.offset for reader in readers] == [head] * 3
        return max(readers, key=lambda reader: reader.held)

    loop = SeededLoop(seed)
    return run(program(), loop=loop)


@pytest.mark.parametrize(
    "seeds",
    [range(25), *(pytest.param(range(n, n + 25), marks=pytest.mark.drill) for n in range(25, 100, 25))],
    ids=str,
)
def test_a_reader_that_was_told_that_it_goes_on_misses_nothing(seeds: range) -> None:
    readers = [play(seed) for seed in seeds]
    assert sum(reader.held for reader in readers) > 25
    assert sum(reader.refreshed for reader in readers) > 25
    assert sum(reader.got for reader in readers) > 500
