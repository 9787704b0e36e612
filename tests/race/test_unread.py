"""How much is unread, counted one by one, is what the service says, at every place and after everything."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter

import asyncpg
import pytest

from app.message.message import change_text
from db.appender import Appender
from db.markers import Markers
from db.migrate import MIGRATIONS_DIR, ROLES_FILE
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.marker import NewMarker, Unread
from subscriptions.domain.model import Append, Appended, Change, NewMessage
from tests.conftest import Database
from tests.race.queues import Queues
from tests.race.support import appenders

KINDS = ["new"] * 4 + ["reply", "update", "delete", "delete", "cut", "annotate", "trim"]

BEFORE_MARKERS = """
truncate gapless.markers;
update gapless.deleted_ranges set first_seq = null, last_seq = null, total = 0;
drop table gapless.deleted_sums;
alter table gapless.channels drop column changes, drop column deleted_seq;
drop index gapless.changes_target;
alter table gapless.changes drop column number, drop constraint changes_pkey,
    add primary key (channel_id, target, id);
create index latest_version on gapless.latest (channel_id, version);
"""
"""What the migrations find that are run again."""


class Room:
    """A channel as a slow model has it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.originals: dict[int, bool] = {}
        """Each by id, and whether it is deleted."""
        self.ids: list[int] = [0]
        """Of all messages."""

    def change(self, kind: str, chance: random.Random) -> Change | None:
        """What the next message changes. None: nothing."""
        if kind == "new" or not self.originals:
            return None
        target = chance.choice(list(self.originals))
        if kind == "cut":
            through = target + chance.choice([0, 1, 3, 20, 500])
            return Change(change_text(target, "delete", through), moderates=True)
        if kind == "annotate":
            return Change(change_text(target, "annotate", None, "like", "total"))
        return Change(change_text(target, kind), moderates=True)

    def stored(self, id_: int, change: Change | None) -> None:
        self.ids.append(id_)
        if change is None or b'"reply"' in change.text:
            self.originals[id_] = False
        elif b'"delete"' in change.text:
            asked = json.loads(change.text)
            for each in self.originals:
                if asked["target"] <= each <= asked.get("through", asked["target"]):
                    self.originals[each] = True

    def trimmed(self, upto: int) -> None:
        self.originals = {id_: deleted for id_, deleted in self.originals.items() if id_ > upto}

    def unread(self, after: int) -> int:
        return sum(id_ > after and not deleted for id_, deleted in self.originals.items())


async def trim(owner: asyncpg.Connection, channel: str, most: int) -> int:
    """Retention leaves so many messages; the newest id that it removed."""
    await owner.execute("update gapless.channels set max_messages = $2 where name = $1", channel, most)
    await owner.execute("select gapless.trim_channels(10)")
    await owner.execute("update gapless.channels set max_messages = null")
    upto: int = await owner.fetchval("select trimmed_id from gapless.channels where name = $1", channel)
    return upto


async def check(markers: Markers, rooms: list[Room], chance: random.Random, places: int) -> None:
    """A marker for many places in each channel."""
    asked = {
        room.name: {f"user {n}": id_ for n, id_ in enumerate(chance.choices(room.ids, k=places))}
        for room in rooms
    }
    moved = [NewMarker(name, user, "read", id_, True) for name in asked for user, id_ in asked[name].items()]
    await markers.mark("default", moved)
    for n in range(places):
        user = f"user {n}"
        for row in await markers.of_user("default", user, "read", None, 0, 100):
            (room,) = [each for each in rooms if each.name == row.channel]
            assert (row.id, row.unread) == (asked[room.name][user], room.unread(row.id)), room.name
            assert row.last_id == room.ids[-1]


@pytest.mark.parametrize("seed", range(4))
async def test_unread_is_what_one_counts(
    database: Database, queues: Queues, owner: asyncpg.Connection, seed: int
) -> None:
    chance = random.Random(seed)
    rooms = [Room(name) for name in ("a", "b")]
    markers = Markers(queues.pool, queues.namespaces)

    async def send(appender: Appender, room: Room, *changes: Change | None) -> None:
        messages = tuple(NewMessage(room.name, b"1", change=change) for change in changes)
        (answer,) = await appender.append([Append("default", messages)])
        assert isinstance(answer, Appended), answer
        for position, change in zip(answer.positions, changes, strict=True):
            room.stored(position.id, change)

    async def take(turns: int) -> None:
        async with appenders(database, 1) as (appender,):
            for turn in range(turns):
                room = chance.choice(rooms)
                kind = chance.choice(KINDS)
                if kind == "trim":
                    if len(room.originals) > 8:
                        room.trimmed(await trim(owner, room.name, chance.choice([5, 20, 60])))
                    continue
                await send(
                    appender, room, *[room.change(kind, chance) for _ in range(chance.choice([1, 1, 3]))]
                )
                if turn % 10 == 9:
                    await check(markers, [room for room in rooms if len(room.ids) > 1], chance, 30)
        await check(markers, rooms, chance, 200)

    await take(120)
    # What was there before the migrations is counted by them, and what comes after them is added to it.
    text, *conversions = (
        next(MIGRATIONS_DIR.glob(f"*_{name}.sql")).read_text()
        for name in ("markers", "numbered_changes", "sums_of_deletions", "newest_deleted")
    )
    tables = text[text.index("create table gapless.change_numbers") : text.index("-- The stretch in seqs")]
    await owner.execute(BEFORE_MARKERS + tables + text[text.index("-- What was there before.") :])
    for conversion in conversions:
        await owner.execute(conversion)
    await owner.execute(ROLES_FILE.read_text())
    await check(markers, rooms, chance, 200)
    async with appenders(database, 1) as (appender,):
        for room in rooms:
            for target in [id_ for id_, deleted in room.originals.items() if not deleted][:1]:
                await send(appender, room, Change(change_text(target, "delete"), moderates=True))
    await check(markers, rooms, chance, 200)
    await take(30)


@pytest.mark.parametrize("last_seq", [63, 64, 4095, 4096, 300_000, 64**4 + 5])
async def test_deletions_count_in_channels_of_any_length(
    queues: Queues, owner: asyncpg.Connection, last_seq: int
) -> None:
    """As if the channel had so many messages: a count takes one number of each level that it has."""
    chance = random.Random(last_seq)
    markers = Markers(queues.pool, queues.namespaces)
    await queues.publish("a", "1")
    await owner.execute("update gapless.channels set last_seq = $1, changes = 1", last_seq)
    edges = [x for n in range(1, 5) for x in (64**n - 1, 64**n, 64**n + 1, 3 * 64**n)]
    seqs = [chance.randint(1, last_seq) for _ in range(60)] + edges
    seqs = [seq for seq in seqs if 0 < seq <= last_seq]
    deleted = chance.choices(seqs, k=80)
    for seq in deleted:
        await owner.execute("select gapless_internal.count_deleted(1, $1, 1)", seq)
    marked = [0, last_seq, *seqs]
    mark = """insert into gapless.markers values (1, 1, 'user ' || $1::bigint, 'read', $1, $1, 1, now())
    on conflict do nothing"""
    await owner.executemany(mark, [(seq,) for seq in marked])
    for seq in marked:
        (row,) = await markers.of_user("default", f"user {seq}", "read", None, 0, 10)
        gone = sum(each > seq for each in deleted)
        assert row.unread == last_seq - seq - gone, seq
        assert await owner.fetchval("select gapless_internal.deleted_after(1, $1)", seq) == gone


async def test_unread_is_of_one_moment(database: Database, queues: Queues, owner: asyncpg.Connection) -> None:
    """Readers while others publish, delete and mark: each row is right for its `last_id`."""
    chance = random.Random(5)
    markers = Markers(queues.pool, queues.namespaces)
    seen: list[Unread] = []
    going = True

    async def publish(appender: Appender) -> None:
        for _ in range(60):
            ids = [row["id"] for row in await owner_rows()]
            kind = chance.choice([each for each in KINDS if each != "trim"])
            room = Room("a")
            room.originals = dict.fromkeys(ids, False)
            messages = (NewMessage("a", b"1", change=room.change(kind, chance)),)
            await appender.append([Append("default", messages)])

    async def owner_rows() -> list[asyncpg.Record]:
        async with lock:
            return await owner.fetch("select id from gapless.messages where not gapless.is_change(change)")

    async def read(user: str) -> None:
        while going:
            (head,) = await markers.of_user("default", user, "read", None, 0, 10)
            seen.append(head)
            upto = chance.choice([0, head.last_id, chance.randint(0, head.last_id)])
            await markers.mark("default", [NewMarker("a", user, "read", upto, chance.random() < 0.5)])

    lock = asyncio.Lock()
    async with appenders(database, 3) as several:
        await several[0].append([Append("default", (NewMessage("a", b"1"),))])
        for user in ("ann", "bob"):
            await markers.mark("default", [NewMarker("a", user, "read", 0)])
        readers = [asyncio.create_task(read(user)) for user in ("ann", "bob")]
        await asyncio.gather(*map(publish, several))
        going = False
        await asyncio.gather(*readers)
    at: dict[int, list[Unread]] = {}
    for row in seen:
        at.setdefault(row.last_id, []).append(row)
    room = Room("a")
    for stored in await owner.fetch("select id, change from gapless.messages order by id"):
        change = None if stored["change"] is None else Change(stored["change"].encode())
        room.stored(stored["id"], change)
        for each in at.pop(stored["id"], []):
            assert each.unread == room.unread(each.id), each
    assert not at
    assert len(seen) > 50


async def test_a_marker_moves_forward_only_unless_it_is_forced(queues: Queues) -> None:
    markers = Markers(queues.pool, queues.namespaces)
    ids = await queues.publish("a", 1, 2, 3)
    moves = [
        (ids[1], False, ids[1], True),
        (ids[0], False, ids[1], False),
        (ids[1], True, ids[1], False),
        (2**53 - 1, False, ids[2], True),
        (ids[0], True, ids[0], True),
        (0, True, 0, True),
    ]
    for id_, force, now, moved in moves:
        ((marker, is_moved),) = await markers.mark("default", [NewMarker("a", "ann", "read", id_, force)])
        assert (marker.id, is_moved) == (now, moved)
    several = [NewMarker("a", "ann", "read", id_) for id_ in ids] + [NewMarker("none", "ann", "read", 1)]
    with pytest.raises(GaplessError, match="channel none does not exist"):
        await markers.mark("default", several)
    (row,) = await markers.of_user("default", "ann", "read", None, 0, 10)
    assert (row.id, row.unread) == (0, 3), "all or none"
    await markers.mark("default", several[:3])
    (row,) = await markers.of_user("default", "ann", "read", None, 0, 10)
    assert (row.id, row.unread, row.last_id, row.last_seq) == (ids[2], 0, ids[2], 3)


async def test_markers_go_with_their_channel(queues: Queues, owner: asyncpg.Connection) -> None:
    markers = Markers(queues.pool, queues.namespaces)
    await queues.publish("a", "1")
    await markers.mark("default", [NewMarker("a", "ann", "read", 1)])
    await owner.execute("select gapless.delete_channel(1, 'a')")
    assert await markers.of_user("default", "ann", "read", None, 0, 10) == []
    await owner.execute("select gapless.purge_rows(1000)")
    for table in ("markers", "changes", "deleted_sums"):
        assert await owner.fetchval(f"select count(*) from gapless.{table}") == 0
    await queues.publish("a", "2")
    assert await markers.of_user("default", "ann", "read", None, 0, 10) == [], "another channel by that name"


async def test_all_or_none_while_a_channel_is_deleted(queues: Queues, owner: asyncpg.Connection) -> None:
    """Whoever marks gets an answer about all markers, or is told that a channel is not there."""
    markers = Markers(queues.pool, queues.namespaces)
    asked = [NewMarker(name, "ann", "read", 0) for name in ("stays", "goes")]
    await queues.publish("stays", "1")
    answers: Counter[str] = Counter()
    going = True

    async def mark() -> None:
        while going:
            try:
                moved = await markers.mark("default", asked)
                answers[", ".join(marker.channel for marker, _ in moved)] += 1
            except GaplessError as error:
                answers[error.code] += 1

    marking = [asyncio.create_task(mark()) for _ in range(6)]
    for _ in range(80):
        await queues.publish("goes", "1")
        await owner.execute("select gapless.delete_channel(1, 'goes')")
    going = False
    await asyncio.gather(*marking)
    assert set(answers) == {"stays, goes", Code.CHANNEL_NOT_FOUND}
