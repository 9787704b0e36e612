"""The hot tail: read in pieces of any size it is the list that was put in, and it stays within its bound."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Sized

from hypothesis import given
from hypothesis import strategies as st

from subscriptions.domain.merge import Merge
from subscriptions.domain.model import Message
from subscriptions.domain.selection import select
from subscriptions.engine.entry import OVERHEAD_BYTES, Entry
from subscriptions.engine.hints import ChannelHint, Copy
from subscriptions.engine.live.feed import ChannelFeed
from subscriptions.engine.live.live_subscription import Chunk, LiveSubscription
from subscriptions.engine.live.tail import Tail
from subscriptions.ports import Head
from tests.contract.memory import MemoryReader
from tests.contract.memory_log import MemoryLog
from tests.sim.loop import run
from tests.sim.world import Wire

MILLION = 1_000_000


def entry(id_: int, size: int = 1) -> Entry:
    return Entry(id_, "default", "lobby", id_, "message", None, b"x" * size)


growth = st.lists(
    st.tuples(st.lists(st.integers(1, 50), max_size=5), st.integers(0, 3)), min_size=1, max_size=20
)


@given(growth, st.integers(1, 200), st.integers(1, 20_000), st.integers(0, 30))
def test_pieces_make_the_whole(grown: list[tuple[list[int], int]], piece: int, most: int, start: int) -> None:
    tail = Tail(start, most)
    everything: list[Entry] = []
    id_ = start
    for sizes, voids in grown:
        added = []
        for size in sizes:
            id_ += 1
            added.append(entry(id_, size))
        id_ += voids
        tail.append(added, id_)
        everything += added
        assert tail.size_bytes == sum(e.size_bytes for e in tail._entries)
        assert tail.size_bytes <= most or len(tail._entries) == 0
    assert tail.head == id_
    for cursor in range(tail.base, tail.head + 1):
        got: list[Entry] = []
        at = cursor
        while True:
            part, after = tail.after(at, piece)
            assert after >= at
            assert len(b"".join(e.body for e in part[:-1])) < piece or len(part) <= 1
            if not part:
                assert after == tail.head
                break
            got += part
            at = after
        assert got == [e for e in everything if e.id > cursor]


@given(st.integers(0, 50), st.integers(0, 50))
def test_a_reset_run_never_goes_back(base: int, at: int) -> None:
    tail = Tail(base, 1000)
    tail.append([entry(base + 1)], base + 5)
    tail.reset(at)
    assert tail.base == tail.head == max(base + 5, at)
    assert tail.after(tail.head, 10) == ([], tail.head)


def test_a_million_messages_leave_nothing_behind() -> None:
    """One stream, a reader that keeps up and one that never reads: what is kept does not grow."""

    async def program() -> None:
        loop = asyncio.get_running_loop()
        reader_of_nothing = MemoryReader(MemoryLog())
        feed = ChannelFeed(select("default", ("lobby",)), reader_of_nothing, encode, loop.time, 64 * 1024)
        feed.begin(Head(1, 0, 0))
        reader = LiveSubscription(feed, 0, Wire(), 15, 0)
        feed.subscribers[LiveSubscription(feed, 0, Wire(), 15, 0)] = None
        sizes = []
        for first in range(1, MILLION, 100):
            entries = [entry(id_) for id_ in range(first, first + 100)]
            copies = [Copy(e.id, e.seq, e.type, e.key, e.body) for e in entries]
            feed.hint(ChannelHint("default", "lobby", 1, first - 1, first - 1, copies), entries[::-1])
            event = reader._event_now()
            assert isinstance(event, Chunk)
            assert len(event.data) == 100
            if first % 100_000 == 1:
                await asyncio.sleep(0)
                sizes.append(_held(feed))
        assert reader.cursor == MILLION
        assert len(set(sizes[1:])) == 1, sizes
        assert max(sizes) <= 2 * 64 * 1024 // OVERHEAD_BYTES

    run(program())


def _held(feed: ChannelFeed) -> int:
    """Things kept for the feed, whoever reads it."""
    merge: Merge[Entry] = feed.merge
    assert merge.floor == feed.tail.head
    kept: list[Sized] = [
        merge._ahead,
        feed._memo,
        feed._pages,
        feed.ephemeral,
        feed._wanted,
        feed.tail._entries,
    ]
    return sum(len(what) for what in kept)


def encode(message: Message) -> bytes:
    raise AssertionError("nothing is read")


def test_an_entry_is_small() -> None:
    """What the bound counts for an entry is not less than what it takes."""
    gc.collect()
    one = entry(1, 100)
    taken = sys.getsizeof(one) + sys.getsizeof(one.body) + sys.getsizeof(one.id)
    assert taken <= one.size_bytes
