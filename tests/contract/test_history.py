"""History and channels, whatever stands behind the port."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, NewMessage, Retention
from subscriptions.ports import HistoryQuery
from tests.contract.conftest import Log, request

QUERY = HistoryQuery("default", "a", None, None, None, (), (), 100)


async def ids(log: Log, query: HistoryQuery) -> tuple[list[int], bool]:
    page = await log.history.history(query)
    return [m.id for m in page.messages], page.has_more


async def test_pages_go_both_ways(log: Log) -> None:
    await log.store(request("a", "b", "a", "a", "b", "a"))
    assert await ids(log, QUERY) == ([1, 3, 4, 6], False)
    assert await ids(log, replace(QUERY, limit=2)) == ([1, 3], True)
    assert await ids(log, replace(QUERY, limit=4)) == ([1, 3, 4, 6], False)
    assert await ids(log, replace(QUERY, after=3, limit=2)) == ([4, 6], False)
    assert await ids(log, replace(QUERY, ascending=False, limit=2)) == ([6, 4], True)
    assert await ids(log, replace(QUERY, ascending=False, before=4)) == ([3, 1], False)
    assert await ids(log, replace(QUERY, after=1, before=6)) == ([3, 4], False)
    assert await ids(log, replace(QUERY, after=6)) == ([], False)
    for query in (QUERY, replace(QUERY, after=6), replace(QUERY, ascending=False, limit=1)):
        assert (await log.history.history(query)).head == 6


async def test_filters_and_times_narrow(log: Log) -> None:
    kinds = [("a", "k"), ("b", "k"), ("a", None)]
    (answer,) = await log.store(
        Append("default", tuple(NewMessage("a", b"1", type=t, key=k) for t, k in kinds))
    )
    assert await ids(log, replace(QUERY, types=("a",))) == ([1, 3], False)
    assert await ids(log, replace(QUERY, keys=("k",), types=("b", "c"))) == ([2], False)
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=answer.positions[0].created_at_us)
    assert await ids(log, replace(QUERY, since=time)) == ([1, 2, 3], False)
    assert await ids(log, replace(QUERY, since=time + timedelta(hours=1))) == ([], False)


async def test_an_export_is_everything(log: Log) -> None:
    for _ in range(5):
        await log.store(request(*["a"] * 500))
    for ascending in (True, False):
        batches = [
            [m.seq for m in batch]
            async for batch in log.history.export(replace(QUERY, limit=10**9, ascending=ascending))
        ]
        seqs = [seq for batch in batches for seq in batch]
        assert seqs == list(range(1, 2501))[:: 1 if ascending else -1]
        assert max(map(len, batches)) <= 1000


async def test_what_retention_took_cannot_be_asked_for(log: Log) -> None:
    await log.store(request(*["a"] * 5))
    await log.trim("a", 2)
    for after in (0, 2):
        with pytest.raises(GaplessError) as refused:
            await log.history.history(replace(QUERY, after=after))
        assert refused.value.code is Code.CURSOR_EXPIRED
    assert await ids(log, replace(QUERY, after=3)) == ([4, 5], False)
    assert await ids(log, QUERY) == ([4, 5], False), "without a cursor it begins with what is there"
    assert await ids(log, replace(QUERY, ascending=False)) == ([5, 4], False)
    with pytest.raises(GaplessError) as refused:
        await log.history.message("default", "a", 3)
    assert refused.value.code is Code.MESSAGE_NOT_FOUND
    channel = await log.channels.get("default", "a")
    assert (channel.first_seq, channel.last_seq, channel.trimmed_id) == (4, 5, 3)


async def test_one_message(log: Log) -> None:
    await log.store(request("a", "b"))
    assert (await log.history.message("default", "a", 1)).channel == "a"
    for channel, id_, expected in (("a", 2, Code.MESSAGE_NOT_FOUND), ("none", 1, Code.CHANNEL_NOT_FOUND)):
        with pytest.raises(GaplessError) as refused:
            await log.history.message("default", channel, id_)
        assert refused.value.code is expected


async def test_settings_are_put_and_patched(log: Log) -> None:
    channel, made = await log.channels.put("default", "a", Retention(60, 10), 5.0)
    assert made
    assert (channel.retention, channel.message_ttl, channel.last_seq) == (Retention(60, 10), 5.0, 0)
    channel = await log.channels.patch("default", "a", {"max_age": None, "message_ttl": 6.0})
    assert (channel.retention, channel.message_ttl) == (Retention(None, 10), 6.0)
    channel, made = await log.channels.put("default", "a", Retention(), None)
    assert not made
    assert (channel.retention, channel.message_ttl) == (Retention(), None)
    with pytest.raises(GaplessError):
        await log.channels.patch("default", "none", {})


async def test_settings_are_changed_where_they_are_those_that_were_seen(log: Log) -> None:
    put, patch, delete = log.channels.put, log.channels.patch, log.channels.delete

    async def refused(work: Awaitable[object], code: Code = Code.PRECONDITION_FAILED) -> None:
        with pytest.raises(GaplessError) as refusal:
            await work
        assert refusal.value.code is code

    await refused(put("default", "a", Retention(), None, if_match=("*",)))
    await refused(patch("default", "a", {}, if_match=("*",)), Code.CHANNEL_NOT_FOUND)
    await refused(delete("default", "a", if_match=("*",)), Code.CHANNEL_NOT_FOUND)
    made, _ = await put("default", "a", Retention(60), None, if_absent=True)
    await refused(put("default", "a", Retention(60), None, if_absent=True))
    assert made.tag == (await log.channels.get("default", "a")).tag != ""
    newer = await patch("default", "a", {"max_age": 61}, if_match=("other", made.tag))
    for stale in ((made.tag,), ()):
        await refused(patch("default", "a", {"max_age": 62}, if_match=stale))
        await refused(put("default", "a", Retention(62), None, if_match=stale))
        await refused(delete("default", "a", if_match=stale))
    assert (await log.channels.get("default", "a")) == newer
    back, was_made = await put("default", "a", Retention(60), None, if_match=(newer.tag,))
    assert (back.tag, was_made) == (made.tag, False)
    await delete("default", "a", if_match=("*",))


async def test_channels_are_listed_by_name(log: Log) -> None:
    await log.store(request("b.1", "a.1", "c", "a.2"))
    listed = await log.channels.page("default", None, "", 10)
    assert [channel.name for channel in listed] == ["a.1", "a.2", "b.1", "c"]
    assert [c.name for c in await log.channels.page("default", None, "a.1", 2)] == ["a.2", "b.1"]
    assert [c.name for c in await log.channels.page("default", "^a[.]", "", 10)] == ["a.1", "a.2"]
    assert await log.channels.page("other", None, "", 10) == []


async def test_a_deleted_channel_begins_anew(log: Log) -> None:
    await log.store(request("a", "a"))
    await log.channels.delete("default", "a")
    for ask in (log.channels.get("default", "a"), log.history.history(QUERY)):
        with pytest.raises(GaplessError) as refused:
            await ask
        assert refused.value.code is Code.CHANNEL_NOT_FOUND
    with pytest.raises(GaplessError):
        await log.channels.delete("default", "a")
    (answer,) = await log.store(request("a"))
    assert (answer.positions[0].seq, answer.positions[0].id) == (1, 3)
    assert await ids(log, QUERY) == ([3], False)
