"""A Postgres that Java can reach, and a log in it with any number of messages."""

from __future__ import annotations

import argparse
import asyncio
import gzip
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from load.drill import say, temporary_home
from load.postgres import Postgres, programs, run

PIECE = 20_000
"""Messages in one append, which bounds its time and memory."""

CHANNELS = 521
APPEND = """
with n as (select cardinality($2::int[]) as n)
select a.ids[n.n] from n, lateral gapless.append(
    array_fill(1, array[cardinality($1::text[])]), $1, true, null, null, null, null, null,
    array_fill(1, array[n.n]), $2, $3, $4, $5, array_fill(null::bytea, array[n.n]),
    array_fill(null::text, array[n.n]), array_fill(null::text, array[n.n]),
    array_fill(null::float8, array[n.n])) a
"""


def add_data(options: argparse.ArgumentParser) -> None:
    """`--data`, for `Sample.of`."""
    options.add_argument("--data", type=Path, help="recorded messages, gzipped JSON lines; else made-up ones")


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server with a migrated log until the block ends. Its data is deleted afterwards."""
    with temporary_home("spark-pg") as home:
        server = Postgres(home / "data")
        try:
            server.make()
            server.start(max_wal_size="8GB", shared_buffers="1GB")
            say(run([programs() / "postgres", "--version"]).strip())
            asyncio.run(server.make_log())
            yield server
        finally:
            server.stop()


@dataclass(frozen=True, slots=True)
class Sample:
    """Messages that are published repeatedly: the channel (a number from 1), type, key and data of each."""

    channels: list[str]
    channel: list[int]
    types: list[str]
    keys: list[str | None]
    data: list[str]

    @staticmethod
    def of(path: Path | None, limit: int = 200_000) -> Sample:
        """At most `limit` recorded messages; made-up ones without a path."""
        return Sample._read(path, limit) if path else Sample._made()

    @staticmethod
    def _read(path: Path, limit: int) -> Sample:
        """Recorded messages: gzipped JSON lines with `channel`, `key`, `type` and `data`."""
        numbers: dict[str, int] = {}
        sample = Sample([], [], [], [], [])
        with gzip.open(path, "rb") as lines:
            for line, _ in zip(lines, range(limit), strict=False):
                one = msgspec.json.decode(line)
                sample.channel.append(numbers.setdefault(one["channel"], len(numbers) + 1))
                sample.types.append(one.get("type") or "message")
                sample.keys.append(one.get("key"))
                sample.data.append(msgspec.json.encode(one["data"]).decode())
        sample.channels.extend(numbers)
        return sample

    @staticmethod
    def _made() -> Sample:
        """Made-up messages, as long as those in chats; always the same."""
        chance = random.Random(1)
        words = [f"{chance.choice('bcdfgklmnprst')}{chance.choice('aeiou')}" * n for n in (1, 2, 3, 4)] * 3
        sample = Sample([f"chat.room{n}" for n in range(CHANNELS)], [], [], [], [])
        for _ in range(100_000):
            user = f"user-{chance.randrange(5000):05}"
            text = " ".join(chance.choices(words, k=max(1, int(chance.lognormvariate(2.5, 0.8)))))
            sample.channel.append(min(CHANNELS, 1 + int(chance.paretovariate(0.6))))
            sample.types.append("chat.message")
            sample.keys.append(user)
            body = {"text": text, "user": user, "sent_at": "2026-01-01T00:00:00.000Z"}
            sample.data.append(msgspec.json.encode(body).decode())
        return sample


async def fill(server: Postgres, sample: Sample, count: int) -> None:
    """Append messages until the log holds `count`. Analyze it, so that every reader gets the same plans."""
    session = await server.connect()
    stored: int = await session.fetchval("select coalesce(sum(last_seq), 0)::bigint from gapless.channels")
    while stored < count:
        piece = min(PIECE, count - stored, len(sample.data))
        start = stored % (len(sample.data) - piece + 1)
        part = slice(start, start + piece)
        numbers = sorted(set(sample.channel[part]))
        places = {number: n for n, number in enumerate(numbers, 1)}
        await session.fetchval(
            APPEND,
            [sample.channels[number - 1] for number in numbers],
            [places[number] for number in sample.channel[part]],
            sample.types[part],
            sample.keys[part],
            sample.data[part],
        )
        stored += piece
        if stored % 1_000_000 < PIECE:
            say(f"{stored:,} messages stored")
    await session.execute("vacuum (analyze) gapless.messages, gapless.channels")
    await session.execute("checkpoint")
    await session.close()
