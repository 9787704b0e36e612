"""Two thousand readers of one channel reconnect at once: how many database queries that causes."""

from __future__ import annotations

import random
import re
import time

import msgspec

from load.bench import faces
from load.bench.faces import Face
from load.drill import say
from load.figure import Figure, UnfitError
from load.server import Server, serving
from load.sse import Counter
from load.wire import Connection

READERS = 2000
HISTORY = 1000
RECENT = 500
"""The channel holds `HISTORY` messages. The last ids of the readers are among the `RECENT` newest."""

GOAL = 20.0
COUNTER = re.compile(r"^gapless_db_queries_total\{(.*?)\} ([0-9.e+]+)$", re.M)
BACKGROUND = re.compile(r"tick|retention|reap|due|schedul|purge|segment|trim|expire", re.I)
"""Queries that run at intervals, with or without the readers."""

SWEEP = re.compile(r"heads|sweep", re.I)
"""The query that finds messages whose hints were lost. It runs once a second; the readers cause the rest."""


async def queries(server: Server) -> dict[str, float]:
    """The service's own count of database queries, by label."""
    answer = await server.get("/metrics")
    if answer is None or answer.status != 200:
        raise UnfitError(f"/metrics was answered {answer.status if answer else 'not at all'}")
    return {label: float(count) for label, count in COUNTER.findall(answer.body.decode())}


async def publish(face: Face, channel: str, count: int) -> list[int]:
    """Publish so many messages in one batch. Returns their ids."""
    connection = await Connection.open(face.target)
    body = msgspec.json.encode([{"data": {"n": n}} for n in range(count)])
    answer = await connection.ask(face.publish(channel, body))
    connection.close()
    if answer.status != 201:
        raise UnfitError(f"a batch was answered {answer.status} {answer.body[:200]!r}")
    return [message["id"] for message in msgspec.json.decode(answer.body)["messages"]]


async def _all_got(readers: list[Counter], owed: list[int]) -> None:
    await faces.all_delivered(lambda: all(r.count >= o for r, o in zip(readers, owed, strict=True)), 20.0)
    wrong = sum(r.count != o for r, o in zip(readers, owed, strict=True))
    if wrong:
        raise UnfitError(f"{wrong} readers did not get exactly the messages that they had missed")


def caused(spent: dict[str, float], seconds: float) -> float:
    """How many of the queries of so many seconds the reconnecting readers caused."""
    counted = 0.0
    for label, count in spent.items():
        if SWEEP.search(label):
            counted += max(0.0, count - seconds - 1)
        elif not BACKGROUND.search(label):
            counted += count
    return counted


async def run(short: bool) -> list[Figure]:
    """Connect all readers, publish, drop them, and reconnect each with an id as its last one."""
    readers, chance = (500 if short else READERS), random.Random(1)
    channel = "bench.herd"
    async with serving() as server:
        face = faces.gapless(server.target)
        crowd = await faces.follow(face, [channel] * readers)
        ids = await publish(face, channel, HISTORY)
        await _all_got(crowd, [HISTORY] * readers)
        await faces.hang_up(crowd)
        places = [chance.randrange(HISTORY - RECENT, HISTORY) for _ in range(readers)]
        before, started = await queries(server), time.perf_counter()
        crowd = await faces.follow(face, [channel] * readers, [ids[place] for place in places])
        seconds = time.perf_counter() - started
        after = await queries(server)
        await _all_got(crowd, [HISTORY - 1 - place for place in places])
        await faces.hang_up(crowd)
    spent = {label: after[label] - before.get(label, 0) for label in after}
    spent = {label: count for label, count in spent.items() if count}
    say(f"herd: all live after {seconds:.2f} s; queries {spent}")
    counted = caused(spent, seconds)
    if not after:
        raise UnfitError("the service does not count its database queries")
    checked = f"{readers:,} readers live after {seconds:.2f} s, each got exactly the messages it had missed"
    return [Figure("herd", counted, None, "queries", counted, GOAL, False, checked)]
