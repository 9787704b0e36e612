"""Reading for live subscriptions, whatever stands behind the port."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from subscriptions.domain.model import Append, Change, NewMessage, Retention
from subscriptions.domain.selection import Changes, Selection, select
from subscriptions.ports import NO_PLACE, Head, Trim
from tests.contract.conftest import Log, request

ALL = select("default", patterns=(">",))


def when(microseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)


async def test_heads_are_those_of_what_is_there(log: Log) -> None:
    (answer,) = await log.store(request("a", "a", "b"))
    heads = await log.read.heads([("default", "a"), ("default", "none"), ("other", "a")])
    channel_id = answer.before["a"][0]
    assert heads == {
        ("default", "a"): Head(channel_id, answer.positions[1].id, 2),
        ("default", "none"): Head(0, 0, 0),
    }


async def test_heads_above_an_id_are_those_of_the_selection(log: Log) -> None:
    await log.store(request("a.1", "b", "a.2", "a.1", "c"))
    assert await log.read.heads_above(select("default", ("c",), ("a.*",)), 0) == {"a.1": 4, "a.2": 3, "c": 5}
    assert await log.read.heads_above(select("default", ("c",), ("a.*",)), 3) == {"a.1": 4, "c": 5}
    assert await log.read.heads_above(select("default", ("none", "b")), 2) == {}
    assert await log.read.heads_above(select("other", patterns=(">",)), 0) == {}


async def test_a_page_of_a_channel_is_what_it_holds(log: Log) -> None:
    await log.store(request("a", "b", "a", "b", "a"))
    chosen = select("default", ("a",))
    page = await log.read.page(chosen, 0, None, 10)
    assert [(m.id, m.seq) for m in page.messages] == [(1, 1), (3, 2), (5, 3)]
    assert (page.complete_to, page.complete_seq, page.trims) == (5, 3, ())
    assert page.channel_id > 0
    page = await log.read.page(chosen, 1, None, 1)
    assert ([m.id for m in page.messages], page.complete_to, page.complete_seq) == ([3], 3, 2)
    page = await log.read.page(chosen, 5, None, 10)
    assert (page.messages, page.complete_to, page.complete_seq) == ((), 5, 3)
    page = await log.read.page(chosen, 9, None, 10)
    assert (page.messages, page.complete_to) == ((), 9)


async def test_a_page_of_a_channel_that_is_not_there_is_nobodys(log: Log) -> None:
    page = await log.read.page(select("default", ("none",)), 7, None, 10)
    assert (page.messages, page.complete_to, page.complete_seq, page.channel_id) == ((), 7, 0, 0)


@pytest.mark.parametrize(
    "chosen",
    [
        select("default", ("a.1", "a.2")),
        select("default", patterns=("a.*",)),
        select("default", ("a.1",), ("a.2",)),
        select("default", ("a.1",), ("*.2", "a.1")),
    ],
)
async def test_a_page_of_many_is_in_id_order_up_to_where_it_was_asked(log: Log, chosen: Selection) -> None:
    await log.store(request("a.1", "a.2", "b", "a.2", "a.1", "b", "a.1"))
    page = await log.read.page(chosen, 1, 6, 10)
    assert ([m.id for m in page.messages], page.complete_to) == ([2, 4, 5], 6)
    page = await log.read.page(chosen, 0, 7, 2)
    assert ([m.id for m in page.messages], page.complete_to) == ([1, 2], 2)
    assert [m.channel for m in page.messages] == ["a.1", "a.2"]


async def test_filters_narrow_pages(log: Log) -> None:
    kinds = [("a", "k"), ("b", "k"), ("a", None), ("b", "j"), ("a", "j")]
    new = tuple(NewMessage("a", b"1", type=type_, key=key) for type_, key in kinds)
    await log.store(Append("default", new))
    for names, patterns in ((("a",), ()), ((), ("*",))):
        for types, keys, expected in (
            (("a",), (), [1, 3, 5]),
            ((), ("k",), [1, 2]),
            (("a", "b"), ("j",), [4, 5]),
            (("none",), (), []),
        ):
            chosen = select("default", names, patterns, types, keys)
            page = await log.read.page(chosen, 0, 5, 10)
            assert ([m.id for m in page.messages], page.complete_to) == (expected, 5)


READ_BY: dict[Changes, list[int]] = {"all": [1, 2, 3, 4, 5], "none": [1, 2, 4], "only": [3, 5]}


async def test_a_filter_lets_changes_through_or_leaves_them_out(log: Log) -> None:
    await log.store(Append("default", (NewMessage("a", b"1"), NewMessage("a", b"2"))))
    for action, target in (("update", 1), ("reply", 1), ("delete", 2)):
        change = Change(b'{"target":%d,"action":"%b"}' % (target, action.encode()), moderates=True)
        await log.store(Append("default", (NewMessage("a", b"3", change=change),)))
    for names, patterns in ((("a",), ()), ((), ("*",)), (("a", "b"), ())):
        for changes, expected in READ_BY.items():
            chosen = select("default", names, patterns, changes=changes)
            page = await log.read.page(chosen, 0, 5, 10)
            assert ([m.id for m in page.messages], page.complete_to) == (expected, 5)
            starts = await log.read.last(chosen, 1, 5)
            assert list(starts.values()) == [expected[-1] - 1]
            page = await log.read.page_from(chosen, starts, 0, 5, 10)
            assert [m.id for m in page.messages] == expected[-1:]


async def test_a_span_is_the_whole_log(log: Log) -> None:
    await log.store(request("a", "b", "c", "a"))
    span = await log.read.span(1, 3, 10)
    assert [(namespace, m.id, m.channel) for namespace, m in span.messages] == [
        ("default", 2, "b"),
        ("default", 3, "c"),
    ]
    assert (span.complete_to, span.trimmed) == (3, False)
    span = await log.read.span(0, 4, 3)
    assert ([m.id for _, m in span.messages], span.complete_to) == ([1, 2, 3], 3)
    span = await log.read.span(4, 9, 3)
    assert (span.messages, span.complete_to) == ((), 9)


async def test_a_span_goes_past_what_was_deleted(log: Log) -> None:
    await log.store(request("a", "b", "a", "b"))
    await log.channels.delete("default", "a")
    span = await log.read.span(0, 4, 10)
    assert ([m.id for _, m in span.messages], span.complete_to) == ([2, 4], 4)


async def test_the_newest_messages_of_each_channel(log: Log) -> None:
    await log.store(request("a", "b", "a", "a", "b"))
    starts = await log.read.last(ALL, 2, 5)
    assert sorted(starts.values()) == [1, 2]
    page = await log.read.page_from(ALL, starts, 0, 5, 10)
    assert [m.id for m in page.messages] == [2, 3, 4, 5]
    page = await log.read.page_from(ALL, starts, 3, 5, 1)
    assert ([m.id for m in page.messages], page.complete_to) == ([4], 4)
    assert sorted((await log.read.last(ALL, 2, 3)).values()) == [0, 0]


async def test_since_a_time(log: Log) -> None:
    await log.store(request("a"))
    (second,) = await log.store(request("b"))
    await log.store(request("a"))
    time = when(second.positions[0].created_at_us)
    assert await log.read.since(ALL, time) == 1
    assert await log.read.since(select("default", ("a",)), time) == 2
    assert await log.read.since(ALL, time - timedelta(days=1)) == 0
    assert await log.read.since(ALL, time + timedelta(days=1)) is None


async def test_what_retention_took_is_named(log: Log) -> None:
    await log.store(request("a", "b", "a", "a", "b", "a"))
    await log.trim("a", 2)
    a = select("default", ("a",))
    page = await log.read.page(a, 0, None, 10)
    (trim,) = page.trims
    assert trim == Trim("a", page.channel_id, 3, 3)
    assert [m.seq for m in page.messages] == [3, 4]
    assert (await log.read.page(a, 3, None, 10)).trims == ()
    page = await log.read.page(ALL, 0, 6, 10)
    assert page.trims == (trim,)
    assert [m.id for m in page.messages] == [2, 4, 5, 6]
    assert [await log.read.seq_at(trim.channel_id, id_) for id_ in (0, 1, 2, 3, 4, 6)] == [0, 1, 1, 2, 3, 4]
    assert (await log.read.span(1, 6, 10)).trimmed
    assert not (await log.read.span(3, 6, 10)).trimmed
    assert set((await log.read.last(ALL, 5, 6)).values()) == {3, 0}


async def test_a_seq_is_found(log: Log) -> None:
    await log.store(request(*"ab" * 40))
    for seq in range(41):
        place = await log.read.place_at("default", "a", seq)
        assert (place.id, place.last_seq, place.last_id) == (max(0, 2 * seq - 1), 40, 79)
    future = await log.read.place_at("default", "a", 2**53)
    assert future.id == 79
    assert await log.read.place_at("default", "none", 1) == NO_PLACE
    assert await log.read.place_at("other", "a", 1) == NO_PLACE
    await log.trim("a", 10)
    placed = [await log.read.place_at("default", "a", seq) for seq in (0, 29, 30, 31, 40)]
    assert [(place.id, place.first_seq, place.trimmed_id) for place in placed] == [
        (59, 31, 59), (59, 31, 59), (59, 31, 59), (61, 31, 59), (79, 31, 59)
    ]  # fmt: skip


async def test_a_seq_is_found_between_the_messages_of_others(log: Log) -> None:
    await log.store(request(*("a" + "b" * 17) * 12, *"b" * 100, "a"))
    for seq in range(1, 13):
        place = await log.read.place_at("default", "a", seq)
        assert (place.id, place.last_id) == (18 * seq - 17, 317)


async def unborn_at(log: Log, channel: str) -> int:
    """What a reader keeps that begins before the channel's first message."""
    head = (await log.read.heads([("default", channel)]))["default", channel]
    place = await log.read.place_at("default", channel, 0)
    assert (head.channel_id, head) == (0, place.head)
    return head.unborn_at


async def is_the_first_since(log: Log, channel: str, unborn_at: int) -> bool:
    """Whether no channel of this name was deleted since that one was read."""
    return (await log.read.place_at("default", channel, 0)).deletion_id <= unborn_at


async def test_a_deletion_is_known_by_its_name(log: Log) -> None:
    await log.store(request("other"))
    before = await unborn_at(log, "a")
    await log.channels.delete("default", "other")
    assert await is_the_first_since(log, "a", before)
    await log.store(request("a"))
    await log.store(request("b", "other"))
    await log.channels.delete("default", "b")
    await log.channels.delete("default", "other")
    assert await is_the_first_since(log, "a", before)
    for _ in range(2):
        await log.channels.delete("default", "a")
        assert not await is_the_first_since(log, "a", before)
        after = await unborn_at(log, "a")
        assert await is_the_first_since(log, "a", after)
        await log.store(request("a"))
        assert not await is_the_first_since(log, "a", before)
        assert await is_the_first_since(log, "a", after)


async def test_each_way_to_make_a_channel_knows_what_came_before_it(log: Log) -> None:
    before = await unborn_at(log, "a")
    await log.store(request("a"))
    await log.channels.delete("default", "a")
    after = await unborn_at(log, "a")
    await log.channels.put("default", "a", Retention(), None)
    assert not await is_the_first_since(log, "a", before)
    assert await is_the_first_since(log, "a", after)
    await log.channels.delete("default", "a")  # It had no message that anybody could miss.
    assert await is_the_first_since(log, "a", after)


async def test_retention_between_two_pages_of_the_newest_is_named(log: Log) -> None:
    await log.store(request(*["a"] * 8))
    starts = await log.read.last(ALL, 5, 8)
    await log.trim("a", 2)
    page = await log.read.page_from(ALL, starts, 0, 8, 10)
    assert [m.seq for m in page.messages] == [7, 8]
    assert [(trim.channel, trim.first_seq, trim.trimmed_id) for trim in page.trims] == [("a", 7, 6)]
    assert (await log.read.page_from(ALL, starts, 6, 8, 10)).trims == ()


async def test_a_trimmed_channel_counts_on(log: Log) -> None:
    await log.store(request("a", "a"))
    await log.trim("a", 1)
    (answer,) = await log.store(request("a"))
    assert answer.positions[0].seq == 3


async def test_the_tick_tells_who_publishes(log: Log) -> None:
    await log.store(request("a"))
    before = await log.read.tick()
    held = await log.hold("a")
    during = await log.read.tick()
    await held.commit()
    after = await log.read.tick()
    assert (before.last_id, during.last_id, after.last_id) == (1, 2, 2)
    assert [len(tick.holders) for tick in (before, during, after)] == [0, 1, 0]
    assert before.life == after.life
    assert await log.settled() == 2
