"""Joins and leaves between processes: hints that others understand, each told once, bounded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import pytest

from app.faces.websocket.presence import MAX_CLIENTS, read_presence, read_presence_stats
from app.message.message import encode_message
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.presence import (
    FEW_CHANNELS,
    MAX_CHANGES,
    MAX_CHANNELS,
    MAX_CHANNELS_OF_CLIENT,
    MAX_CROWD,
    Change,
    Channel,
    ClientInfo,
    Clients,
)
from subscriptions.domain.principal import Principal
from subscriptions.domain.selection import select
from subscriptions.engine.exchange import Exchange
from subscriptions.engine.hints import (
    SIGNATURE_BYTES,
    ChannelHint,
    EphemeralHint,
    HintCodec,
    Hints,
    PresenceHint,
)
from subscriptions.engine.live.engine import LiveEngine
from subscriptions.engine.live.live_subscription import Event, LiveSubscription
from subscriptions.engine.live.starts import Latest
from subscriptions.engine.presence import Presence
from subscriptions.ports import PresencePage
from tests.contract.listener import Listener
from tests.contract.memory import MemoryReader
from tests.contract.memory_bus import MemoryHub
from tests.contract.memory_log import MemoryLog
from tests.contract.memory_presence import MemoryPresence, MemoryPresenceHub
from tests.contract.showing import client
from tests.patience import cancel, eventually

SECRET = bytes(range(32))


class Wire:
    """One line for each change."""

    name = "lines"
    shared = True

    def frame(self, entry: object) -> bytes:
        return b"message\n"

    def change(self, channel: str, change: Change) -> bytes:
        return f"{'+' if change.joined else '-'}{change.client}\n".encode()

    def count(self, channel: str, clients: int) -> bytes:
        return b"=%d\n" % clients


class Frame(bytes):
    """A frame that counts as long as it is there."""

    held = 0

    def __init__(self, _: bytes) -> None:
        Frame.held += 1

    def __del__(self) -> None:
        Frame.held -= 1


class OwnWire(Wire):
    """The wire of one reader, with a name that its client chose."""

    shared = False

    def __init__(self, name: str) -> None:
        self.name = name

    def change(self, channel: str, change: Change) -> bytes:
        return Frame(super().change(channel, change))


class Host:
    """A process: its readers are told what is in `told`."""

    def __init__(self, log: MemoryLog, bus: MemoryHub, hub: MemoryPresenceHub) -> None:
        self.reader = MemoryReader(log)
        self.live = LiveEngine(self.reader, encode_message, clock=time.monotonic)
        self.exchange = Exchange(self.live, bus.open, now_us=lambda: time.time_ns() // 1000)
        self.exchange.learn((SECRET,))
        self.presence = Presence(
            self.live, self.exchange, hub.open, clock=time.monotonic, now_us=lambda: time.time_ns() // 1000
        )
        self.exchange.listen(presence=self.presence.hear)
        self.told: list[str] = []
        self.takes = True

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Host]:
        loops = (self.live.run(), self.exchange.run(), self.presence.run())
        tasks = [asyncio.create_task(loop) for loop in loops]
        yield self
        await cancel(*tasks)

    def write(self, data: bytes) -> bool:
        if self.takes:
            self.told += data.decode().splitlines()
        return self.takes

    async def read(self, of: ClientInfo, wire: Wire | None = None) -> LiveSubscription:
        """A reader of the channel `a`, past its `ready`."""
        subscription = await self.live.subscribe(select("default", ("a",)), Latest(), Wire(), 1000)
        subscription.write = self.write
        self.presence.join(of, subscription, wire or Wire())
        await subscription.next(self.reader)
        self.waiting: asyncio.Task[Event] = asyncio.create_task(subscription.next(self.reader))
        return subscription

    async def crowd(self, count: int) -> LiveSubscription:
        """So many clients that are told nothing, in one subscription."""
        silent = await self.live.subscribe(select("default", ("a",)), Latest(), Wire(), 1000)
        for _ in range(count):
            self.presence.join(client(), silent, None)
        return silent


@asynccontextmanager
async def hosts() -> AsyncIterator[tuple[Host, Host, MemoryHub]]:
    log, bus, hub = MemoryLog(), MemoryHub(), MemoryPresenceHub()
    async with Host(log, bus, hub).running() as one, Host(log, bus, hub).running() as two:
        await eventually(lambda: one.exchange.heard and two.exchange.heard)
        yield one, two, bus


async def test_a_hint_that_is_sent_again_is_not_told_again() -> None:
    async with hosts() as (one, two, bus):
        thief = Listener(bus.open, one.live.identity)
        await thief.connected()
        await one.read(client())
        there = client()
        subscription = await two.crowd(0)
        two.presence.join(there, subscription, None)
        await eventually(lambda: one.told == [f"+{there.id}"])
        for payload in list(thief.heard):
            thief.bus.send(payload)
        await eventually(lambda: one.exchange.forged)
        two.presence.leave(there, subscription)
        await eventually(lambda: one.told == [f"+{there.id}", f"-{there.id}"])
        await thief.stop()


async def test_a_process_that_listens_for_a_moment_is_told_who_joins() -> None:
    """The other one still takes itself for alone."""
    log, bus, hub = MemoryLog(), MemoryHub(), MemoryPresenceHub()
    async with Host(log, bus, hub).running() as one:
        await eventually(lambda: one.exchange.connected and not one.exchange.heard)
        async with Host(log, bus, hub).running() as two:
            await eventually(lambda: two.exchange.connected)
            assert not one.exchange.heard
            await two.read(client())
            here = client()
            one.presence.join(here, await one.crowd(0), None)
            await eventually(lambda: two.told == [f"+{here.id}"])


async def test_a_client_is_not_told_of_itself() -> None:
    async with hosts() as (one, two, _):
        own = client()
        await one.read(own)
        other = client()
        two.presence.join(other, await two.crowd(0), None)
        await eventually(lambda: one.told)
        assert one.told == [f"+{other.id}"]


async def joined(one: Host, two: Host, silent: LiveSubscription) -> list[ClientInfo]:
    """More clients than are told at a time, in a subscription of the second; the first was told of all."""
    crowd = [client() for _ in range(3 * MAX_CHANGES)]
    for each in crowd:
        two.presence.join(each, silent, None)
    await eventually(lambda: len(one.told) == len(crowd))
    return crowd


async def test_a_crowd_is_told_one_by_one_in_all_processes() -> None:
    """Clients that keep a list of who is there know no other way."""
    async with hosts() as (one, two, _):
        await one.read(client())
        silent = await two.crowd(0)
        crowd = await joined(one, two, silent)
        for each in crowd:
            two.presence.leave(each, silent)
        await eventually(lambda: len(one.told) == 2 * len(crowd))
        assert set(one.told) == {f"{sign}{each.id}" for sign in "+-" for each in crowd}


async def test_the_clients_of_a_process_that_died_leave() -> None:
    async with hosts() as (one, two, _):
        await one.read(client())
        crowd = await joined(one, two, await two.crowd(0))
        one.told.clear()
        assert two.presence._showing is not None
        await cancel(two.presence._showing)
        await eventually(lambda: len(one.told) == len(crowd))
        assert set(one.told) == {f"-{each.id}" for each in crowd}


async def test_a_process_that_was_taken_for_lost_says_that_its_clients_are_there() -> None:
    async with hosts() as (one, two, _):
        await one.read(client())
        here = client()
        two.presence.join(here, await two.crowd(0), None)
        await eventually(lambda: one.told == [f"+{here.id}"])
        assert one.presence._port is not None
        await one.presence._port.doubt(two.exchange.node)
        await eventually(lambda: one.told == [f"+{here.id}", f"+{here.id}"])


async def test_a_question_in_a_process_that_just_started_waits() -> None:
    """Until presence was reached, or could not be."""
    log, bus, hub = MemoryLog(), MemoryHub(), MemoryPresenceHub()
    host = Host(log, bus, hub)
    asked = asyncio.create_task(host.presence.page(("default", "a"), "", 10))
    async with host.running():
        assert (await asked).clients == []
        hub.away = True
        with pytest.raises(GaplessError):
            await host.presence.page(("default", "a"), "", 10)


async def test_a_large_channel_is_only_counted() -> None:
    """Also where its clients are elsewhere."""
    async with hosts() as (one, two, _):
        await one.read(client())
        silent = await two.crowd(MAX_CROWD)
        await eventually(lambda: one.told)
        late = client()
        two.presence.join(late, silent, None)
        await eventually(lambda: len(one.told) == 2)
        assert one.told == [f"={MAX_CROWD + 1}", f"={MAX_CROWD + 2}"]
        one.presence.join(client(), await one.crowd(0), None)
        await eventually(lambda: len(one.told) == 3)
        assert one.told[2] == f"={MAX_CROWD + 3}"


async def test_a_reader_that_takes_nothing_is_passed_over() -> None:
    async with hosts() as (one, _, _):
        subscription = await one.read(client())
        one.takes = False
        silent = await one.crowd(3)
        await eventually(lambda: one.presence.dropped == 1)
        one.takes = True
        last = client()
        one.presence.join(last, silent, None)
        await eventually(lambda: one.told)
        assert one.told == [f"+{last.id}"]
        assert not subscription.gone


async def test_a_client_is_shown_on_so_many_channels() -> None:
    """Joins and leaves of the others are not told. A place that it leaves is for the next of them."""
    names = [f"n{number:03}" for number in range(MAX_CHANNELS_OF_CLIENT + 2)]
    async with hosts() as (one, _, _):
        greedy = client()

        async def follow(*some: str) -> LiveSubscription:
            subscription = await one.live.subscribe(select("default", some), Latest(), Wire(), 1000)
            one.presence.join(greedy, subscription, None)
            return subscription

        def shown() -> list[str]:
            clients = one.presence.clients
            return [name for name in [*names, "a"] if greedy.id in clients.of(("default", name))]

        await one.read(client())
        first = await follow(names[0])
        rest = await follow(*names[1:])
        beyond = await follow("a")
        assert shown() == names[:MAX_CHANNELS_OF_CLIENT]
        assert (one.presence.clients.beyond_client, one.presence.clients.beyond_process) == (3, 0)
        assert not one.presence.clients.hides, "it has all that it may have"
        one.presence.leave(greedy, first)
        # Those that wait take turns at each tick, so any of them may have the place.
        await eventually(lambda: len(shown()) == MAX_CHANNELS_OF_CLIENT and names[0] not in shown())
        one.presence.leave(greedy, rest)
        await eventually(lambda: shown() == ["a"])
        await eventually(lambda: one.told)
        one.presence.leave(greedy, beyond)
        await eventually(lambda: len(one.told) > 1)
        assert one.told == [f"+{greedy.id}", f"-{greedy.id}"]


def test_a_process_shows_so_many_channels() -> None:
    clients = Clients()
    crowd = [client() for _ in range(MAX_CHANNELS // FEW_CHANNELS + 1)]
    names = [("default", f"n{number}") for number in range(MAX_CHANNELS + 1)]
    joined = [clients.join(name, crowd[number // FEW_CHANNELS]) for number, name in enumerate(names)]
    assert joined == [True] * MAX_CHANNELS + [False]
    assert clients.join(names[0], crowd[-1]), "the channel is there already"
    assert (clients.beyond_client, clients.beyond_process) == (0, 1)
    assert clients.hides
    assert clients.leave(names[1], crowd[0])
    assert clients.fill(1) == [(names[-1], crowd[-1])]
    assert not clients.hides
    assert len(clients.channels) == MAX_CHANNELS


def test_some_who_follow_very_many_channels_do_not_hide_the_others() -> None:
    clients = Clients()
    for number in range(80):
        greedy = client()
        for n in range(MAX_CHANNELS_OF_CLIENT):
            clients.join(("default", f"{number}.{n}"), greedy)
    assert clients.hides
    late = client()
    assert [clients.join(("default", f"late.{n}"), late) for n in range(FEW_CHANNELS)] == [
        True
    ] * FEW_CHANNELS


def test_a_look_at_who_is_hidden_takes_so_many_turns() -> None:
    """However many channels a client waits for; nobody waits for another to be done."""
    clients = Clients(max_channels=300, max_of_client=256, reserved=0)
    greedy, others = client(), [client() for _ in range(50)]
    for n in range(300):
        clients.join(("default", f"{n}"), greedy if n < 256 else others[0])
    for n in range(1000):
        clients.join(("default", f"more.{n}"), greedy)
    for n, other in enumerate(others):
        clients.join(("default", f"other.{n}"), other)
    for n in range(256, 300):
        clients.leave(("default", f"{n}"), others[0])
    shown = clients.fill(20) + clients.fill(25)
    assert len(shown) == 44
    assert greedy not in {each for _, each in shown}


class OlderHints(msgspec.Struct, array_like=True):
    """What processes of the version before read."""

    origin: str
    channels: list[ChannelHint]
    ephemeral: list[EphemeralHint]
    woken: list[int] = []
    settled: list[tuple[int, int, int]] = []
    sent_at_us: int = 0


def test_older_processes_read_hints_with_presence() -> None:
    hints = Hints("me", [], [], [7], presence=[PresenceHint("default", "a", 1, [("c", None, True, 5)])])
    codec = HintCodec(SECRET)
    payload = codec.encode(hints)
    assert codec.decode(payload) == hints
    older = msgspec.msgpack.decode(payload[SIGNATURE_BYTES:], type=OlderHints)
    assert (older.origin, older.woken) == ("me", [7])
    assert codec.decode(codec.encode(hints)[:SIGNATURE_BYTES] + b"") is None


async def test_frames_of_one_reader_are_not_kept_for_the_others() -> None:
    joining, readers = 20, 30
    async with hosts() as (one, _, _):
        waiting: list[asyncio.Task[Event]] = []
        held: list[int] = []
        of = client()
        for n in range(readers):
            await one.read(of, OwnWire(f"own {n}"))
            waiting.append(one.waiting)

        def write(data: bytes) -> bool:
            held.append(Frame.held)
            return True

        for audience in one.presence._audiences.values():
            for reader in audience.readers:
                reader.write = write
        await one.crowd(joining)
        await eventually(lambda: len(held) >= readers)
        assert max(held) <= 2 * joining
        for task in waiting:
            task.cancel()


async def test_those_who_ask_at_once_share_an_answer_and_none_is_older_than_its_question() -> None:
    """The first answer is read before a client joins, and waits until others have asked."""
    async with hosts() as (one, _, _):
        await eventually(lambda: one.presence._port and one.presence._port.connected)
        port = one.presence._port
        assert isinstance(port, MemoryPresence)
        read, reads, going_on = port.page, [], asyncio.Event()

        async def page(channel: Channel, after: str, limit: int) -> PresencePage:
            found = await read(channel, after, limit)
            reads.append(channel)
            await going_on.wait()
            return found

        port.page = page  # type: ignore[method-assign]
        ask = partial(one.presence.page, ("default", "a"), "", 10)
        early = [asyncio.create_task(ask()) for _ in range(300)]
        await eventually(lambda: reads)
        here = client()
        one.presence.join(here, await one.crowd(0), None)
        late = [asyncio.create_task(ask()) for _ in range(300)]
        other = asyncio.create_task(one.presence.page(("default", "b"), "", 10))
        await eventually(lambda: len(reads) > 1)
        going_on.set()
        assert [page.clients for page in await asyncio.gather(*early)] == [[]] * 300
        assert [page.clients for page in await asyncio.gather(*late)] == [[here]] * 300
        assert (await other).clients == []
        assert sorted(name for _, name in reads) == ["a", "a", "b"]


async def test_a_reply_over_websocket_says_where_it_is_incomplete() -> None:
    """Also where it has the first clients only."""
    async with hosts() as (one, _, _):
        await eventually(lambda: one.presence._port and one.presence._port.connected)

        async def incomplete() -> list[bool]:
            asked, who = (read_presence, read_presence_stats), Principal("default")
            read = [await ask(who, "a", one.presence) for ask in asked]
            return [msgspec.json.decode(reply).get("complete") is False for reply in read]

        await one.crowd(MAX_CLIENTS)
        assert await incomplete() == [False, False]
        await one.crowd(1)
        assert await incomplete() == [True, False]
        one.presence.clients._max_channels = one.presence.clients._reserved = 0
        one.presence.join(
            client(), await one.live.subscribe(select("default", ("b",)), Latest(), Wire(), 1000), None
        )
        assert await incomplete() == [True, True]
