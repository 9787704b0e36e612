"""What it costs the database to say how much is unread in 200 channels, for one of 10,000 users."""

from __future__ import annotations

import json
import random
import time

import asyncpg

from load.children import CHECKOUT
from load.drill import say
from load.figure import Figure, UnfitError, quantile
from load.postgres import blocks
from load.server import serving

CHANNELS = 200
USERS, SHORT_USERS = 10_000, 200
MESSAGES, SHORT_MESSAGES = 1_500, 100
"""In each channel: with all of them unread these are 300,000."""
FEW = 3
READS = 200
GOAL_MS = 5.0

APPEND = """
select (gapless.append_messages(
    array[1], array[$1], true, null, null, null, null, null, array_agg(1), array_agg(1),
    array_agg('note'::text), array_agg(null::text), array_agg('1'::text), array_agg(null::bytea),
    array_agg(null::text), array_agg(null::text), array_agg(null::double precision),
    case when count(c) > 0 then array_agg(c::json) end, array_agg(null::bigint), array_agg(true))).fences
from unnest($2::text[]) c
"""
"""Messages of one channel, with what each changes, or null."""
MARK = """
insert into gapless.markers (namespace_id, channel_id, "user", name, id, seq, changes, updated_at)
select 1, c.id, 'user ' || u, 'read', 0, 0, 0, now()
from gapless.channels c, generate_series(1, $1::integer) u
"""
MARK_ALL_BUT = """
select (gapless.mark(1, array_agg(c.name), array_agg($1::text), array_agg('read'::text), array_agg(m.id),
                     array_agg(true))).id
from gapless.channels c join gapless.messages m on m.channel_id = c.id and m.seq = $2::bigint
"""
COUNTED = """
select c.name, count(m.id) from gapless.channels c
left join gapless.messages m on m.channel_id = c.id and m.seq > $1 and not gapless.is_change(m.change)
    and not exists (select from gapless.latest l where l.channel_id = c.id and l.id = m.id and l.deleted)
    and not exists (select from gapless.deleted_ranges d
                    where d.channel_id = c.id and m.id between d.first_id and d.last_id)
group by 1
"""


def deletion(target: int, **more: int) -> str:
    """What a message says that deletes another one."""
    return json.dumps({"target": target, "action": "delete", **more})


async def fill(owner: asyncpg.Connection, users: int, messages: int, *, deleting: bool) -> None:
    """Channels with messages, of which every tenth is deleted, and a marker of each user in each channel."""
    chance = random.Random(1)
    for n in range(CHANNELS):
        await owner.execute(APPEND, f"room.{n}", [None] * messages)
        if deleting:
            rows = await owner.fetch(
                "select m.id from gapless.messages m join gapless.channels c on c.id = m.channel_id"
                " where c.name = $1 order by m.id limit $2",
                f"room.{n}",
                messages - FEW,
            )
            ids = [row["id"] for row in rows]
            gone = [deletion(id_) for id_ in chance.sample(ids, messages // 10)]
            first = chance.randrange(len(ids) // 2)
            gone.append(deletion(ids[first], through=ids[first + len(ids) // 10]))
            await owner.execute(APPEND, f"room.{n}", gone)
    await owner.execute(MARK, users)
    await owner.execute("vacuum analyze")


async def read(owner: asyncpg.Connection, statement: str, user: str, expected: dict[str, int]) -> list[float]:
    """The milliseconds of each of several reads of a user's channels."""
    took = []
    for _ in range(READS):
        began = time.perf_counter()
        rows = await owner.fetch(statement, 1, user, "read", 0, None, CHANNELS)
        took.append((time.perf_counter() - began) * 1000)
    found = {row["channel"]: row["unread"] for row in rows}
    if found != expected:
        raise UnfitError(f"{user} has other unread messages than one counts")
    return took


async def run(short: bool) -> list[Figure]:
    """Measure once, with messages that are deleted and without them."""
    users, messages = (SHORT_USERS, SHORT_MESSAGES) if short else (USERS, MESSAGES)
    statement = blocks((CHECKOUT / "db/sql/markers.sql").read_text())["markers_of_user"]
    figures = []
    for deleting in (False, True):
        async with serving() as server:
            owner = await server.connect()
            await fill(owner, users, messages, deleting=deleting)
            for user, seq in (("user 1", messages - FEW), ("user 2", 0)):
                if seq:
                    await owner.execute(MARK_ALL_BUT, user, seq)
                expected = {row["name"]: row["count"] for row in await owner.fetch(COUNTED, seq)}
                took = await read(owner, statement, user, expected)
                total = sum(expected.values())
                what = f"{total:,} unread{', some deleted' if deleting else ''}"
                p50, p99 = quantile(took, 0.5), quantile(took, 0.99)
                say(f"unread: {CHANNELS} channels, {what}: p50 {p50:.2f} ms, p99 {p99:.2f} ms")
                checked = f"{CHANNELS} channels as counted one by one; {users:,} users; p99 {p99:.1f} ms"
                figures.append(
                    Figure(f"unread of 200 channels, {what}", p50, None, "ms", p50, GOAL_MS, False, checked)
                )
            await owner.close()
    return figures
