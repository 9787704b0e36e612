"""A Postgres of one's own that listens on loopback TCP too, for Java has no other way in; and a log in it."""

from __future__ import annotations

import asyncio
import gzip
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import orjson

from load.children import free_port
from load.postgres import as_nobody, command, migrate, programs, run

Say = Callable[[str], None]

PIECE = 20_000
"""Messages in one append: the call is bounded in time, and so is what it holds in memory."""
CHANNELS = 521
APPEND = """
with n as (select cardinality($2::int[]) as n)
select a.ids[n.n] from n, lateral gapless.append(
    array_fill(1, array[cardinality($1::text[])]), $1, true, null, null, null, null, null,
    array_fill(1, array[n.n]), $2, $3, $4, $5, array_fill(null::bytea, array[n.n]),
    array_fill(null::text, array[n.n]), array_fill(null::text, array[n.n]),
    array_fill(null::float8, array[n.n])) a
"""


@dataclass(frozen=True, slots=True)
class Postgres:
    """A server on loopback, with fsync on; `log` is the database of a migrated Gapless."""

    port: int
    log: str = "gapless"

    @property
    def url(self) -> str:
        """The superuser's, as libpq and asyncpg read it."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{self.log}"

    @property
    def jdbc_url(self) -> str:
        """The same for Java."""
        return f"jdbc:postgresql://127.0.0.1:{self.port}/{self.log}?user=postgres"

    async def connect(self, database: str | None = None) -> asyncpg.Connection:
        """A session of one's own."""
        return await asyncpg.connect(
            host="127.0.0.1", port=self.port, user="postgres", database=database or self.log
        )


@contextmanager
def postgres(say: Say) -> Iterator[Postgres]:
    """Start one on throw-away data, migrate it, and stop it at the end."""
    bin_ = programs()
    home = Path(tempfile.mkdtemp(prefix="gapless-spark-pg-"))
    server = Postgres(free_port())
    try:
        as_nobody(home)
        run([bin_ / "initdb", "-D", home / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8",
              "--locale=C.UTF-8"])  # fmt: skip
        settings = {"listen_addresses": "127.0.0.1", "port": server.port, "unix_socket_directories": home,
                    "max_wal_size": "8GB", "shared_buffers": "1GB"}  # fmt: skip
        words = " ".join(f"-c {name}={value}" for name, value in settings.items())
        run([bin_ / "pg_ctl", "-D", home / "data", "-l", home / "log", "-w", "-o", words, "start"])
        say(run([bin_ / "postgres", "--version"]).strip())
        asyncio.run(make_log(server))
        yield server
    finally:
        with_data = [bin_ / "pg_ctl", "-D", home / "data", "-m", "immediate", "stop"]
        subprocess.run(command(with_data), capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


async def make_log(server: Postgres, *, roles: bool = True) -> None:
    """Make the database of the log, and with the first one the roles of all."""
    session = await server.connect("postgres")
    await session.execute(f"create database {server.log}")
    for role in ("gapless_service", "gapless_publisher", "gapless_reader") if roles else ():
        await session.execute(f"create role {role} nologin")
    await session.close()
    migrate(server.url)


@dataclass(frozen=True, slots=True)
class Sample:
    """Messages to publish again and again: channel (by number), type, key and data of each."""

    channels: list[str]
    channel: list[int]
    types: list[str]
    keys: list[str | None]
    data: list[str]

    @staticmethod
    def read(path: Path, limit: int = 200_000) -> Sample:
        """Recorded messages: gzipped JSON lines with `channel`, `key`, `type` and `data`."""
        numbers: dict[str, int] = {}
        sample = Sample([], [], [], [], [])
        with gzip.open(path, "rb") as lines:
            for line, _ in zip(lines, range(limit), strict=False):
                one = orjson.loads(line)
                sample.channel.append(numbers.setdefault(one["channel"], len(numbers) + 1))
                sample.types.append(one.get("type") or "message")
                sample.keys.append(one.get("key"))
                sample.data.append(orjson.dumps(one["data"]).decode())
        sample.channels.extend(numbers)
        return sample

    @staticmethod
    def made(seed: int = 1, count: int = 100_000) -> Sample:
        """Made-up ones, as long as people write in chats."""
        chance = random.Random(seed)
        words = [f"{chance.choice('bcdfgklmnprst')}{chance.choice('aeiou')}" * n for n in (1, 2, 3, 4)] * 3
        sample = Sample([f"chat.room{n}" for n in range(CHANNELS)], [], [], [], [])
        for _ in range(count):
            user = f"user-{chance.randrange(5000):05}"
            text = " ".join(chance.choices(words, k=max(1, int(chance.lognormvariate(2.5, 0.8)))))
            sample.channel.append(min(CHANNELS, 1 + int(chance.paretovariate(0.6))))
            sample.types.append("chat.message")
            sample.keys.append(user)
            body = {"text": text, "user": user, "sent_at": "2026-01-01T00:00:00.000Z"}
            sample.data.append(orjson.dumps(body).decode())
        return sample


async def fill(server: Postgres, sample: Sample, count: int, say: Say) -> None:
    """Append messages until the log holds `count`; `analyze` it, so that every reader has the same plans."""
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
