"""Publishing messages that change others, compared with publishing the same without a target, in one log.

Before it, SQL fills the log: `--messages` says how many there are. Every target is anywhere in it.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator

import asyncpg
import msgspec

from load.bench.cost import Cost
from load.bench.publish import CHANNELS, CONNECTIONS, stored
from load.drill import say
from load.figure import Figure, UnfitError, versus
from load.server import Server, serving
from load.wire import Response, pump

MESSAGES = 100_000
PIECE = 1_000_000
"""Messages that are filled in by one statement."""
PREPARED = 30_000
"""Requests that are made before a turn, so that making them is not measured. A longer turn repeats them."""
DATA = {"text": "The quick brown fox jumps over the lazy dog, and is confirmed."}
GOAL = 0.8

FILL = """
with filled as (
    insert into gapless.messages (id, channel_id, seq, created_at, type, data, size)
    select $1::bigint + n, c.id, c.last_seq + n / $3 + 1, now(), 'message', $4::text::json, octet_length($4)
    from generate_series(0, $2::bigint - 1) n
    join (select c.*, row_number() over (order by c.name) - 1 as place from gapless.channels c) c
      on c.place = n % $3
    returning channel_id, id, seq
)
update gapless.channels c set last_id = f.last_id, last_seq = f.last_seq
from (select channel_id, max(id) as last_id, max(seq) as last_seq from filled group by channel_id) f
where c.id = f.channel_id
"""


async def fill(session: asyncpg.Connection, channels: int, count: int) -> None:
    """Add so many messages to all channels of the log in turn. Nobody else may publish meanwhile."""
    began, first = time.monotonic(), await session.fetchval("select last_value + 1 from gapless.message_id")
    await session.execute(f"select gapless_internal.keep_spares({first + count})")
    text = msgspec.json.encode(DATA).decode()
    for done in range(0, count, PIECE):
        piece = min(PIECE, count - done)
        async with session.transaction():
            await session.execute(f"select setval('gapless.message_id', {first + done + piece - 1})")
            await session.execute(FILL, first + done, piece, channels, text)
    for table in ("messages", "channels"):
        await session.execute(f"vacuum (analyze) gapless.{table}")
    say(f"changes: {count:,} messages filled in, in {time.monotonic() - began:.0f} s")


async def originals(session: asyncpg.Connection, chance: random.Random, count: int) -> list[tuple[str, int]]:
    """Messages from anywhere in the log: the channel and the id of each."""
    query = """
    select c.name, m.id from unnest($1::bigint[]) as n (id)
    join gapless.messages m on m.id = n.id
    join gapless.channels c on c.id = m.channel_id where m.change is null
    """
    last: int = await session.fetchval("select last_value from gapless.message_id")
    found: list[tuple[str, int]] = []
    while len(found) < count:
        some = [chance.randint(1, last) for _ in range(count)]
        found += [(row["name"], row["id"]) for row in await session.fetch(query, some)]
    return found[:count]


async def rate(
    server: Server, bodies: list[tuple[str, bytes]], seconds: float, answers: Counter[int]
) -> float:
    """Confirmed publishes per second of these messages, each with its channel, over all connections."""
    target, before = server.target, answers[201]
    made = [target.request("POST", f"/v1/channels/{name}/messages", body) for name, body in bodies]

    def requests() -> Iterator[bytes]:
        while time.perf_counter() < deadline:
            yield made[next(numbers) % len(made)]

    def sink(answer: Response) -> None:
        answers[answer.status] += 1

    numbers = iter(range(10**9))
    started = time.perf_counter()
    deadline, source = started + seconds, requests()
    await pump(target, CONNECTIONS, lambda: next(source, None), sink)
    return (answers[201] - before) / (time.perf_counter() - started)


async def run(short: bool, messages: int | None = None) -> list[Figure]:
    """Measure both in turn, in pairs, each first in every second one. Then as many messages must be stored
    as were confirmed."""
    seconds, pairs = (1.5, 2) if short else (3.0, 10)
    count, chance = messages or MESSAGES, random.Random(1)
    answers: Counter[int] = Counter()
    rates: list[tuple[float, float]] = []
    async with serving() as server:
        session = await server.connect()
        plain, costs = (
            [(name, msgspec.json.encode({"data": DATA})) for name in CHANNELS],
            [Cost(server), Cost(server)],
        )
        await rate(server, plain, 0.5, answers)
        await fill(session, len(CHANNELS), count)
        for number in range(pairs + 1):
            found = await originals(session, chance, PREPARED)
            of_targets = [
                (name, msgspec.json.encode({"data": DATA, "target": id_, "action": "update"}))
                for name, id_ in found
            ]
            of_plain = [(name, plain[0][1]) for name, _ in found]
            pair = [0.0, 0.0]
            for which in (0, 1) if number % 2 else (1, 0):
                before = answers[201]
                # In the first pair both warm up.
                cost = costs[which] if number else Cost(server)
                with cost:
                    pair[which] = await rate(server, (of_targets, of_plain)[which], seconds, answers)
                cost.operations += answers[201] - before
            if number:
                rates.append((pair[0], pair[1]))
                say(f"changes, pair {number}: {pair[0]:,.0f}/s with a target, {pair[1]:,.0f}/s without")
        held = await stored(server) - count
        await session.close()
    if set(answers) != {201} or held != answers[201]:
        raise UnfitError(f"answers {dict(answers)}, {held} stored")
    say(f"changes: CPU for 10,000: {costs[0]} with a target, {costs[1]} without")
    checked = f"{held:,} confirmed and stored, beside {count:,}"
    return [versus("publish with a target", "confirmed/s", rates, GOAL, checked, cost=costs[0])]
