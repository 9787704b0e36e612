"""One Spark session for the run, and a log to read with it.

Everything here is synchronous: Spark's own calls block, and a test says in which order things happen.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Awaitable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import gapless_spark
import pytest
from gapless_spark.session import SessionOptions, start
from pyspark.sql import DataFrame, SparkSession

from app.embedded import EmbeddedPostgres
from tests.conftest import Database, External, drop_database, make_database
from tests.patience import PATIENCE_S

T = TypeVar("T")


def start_session(folder: Path) -> SparkSession:
    """A session of two local tasks, as the jobs start it, with its files in `folder`."""
    # The workers import the package and whatever a test hands to them by name.
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*filter(None, sys.path), *filter(None, known)]))
    conf = (
        ("spark.log.level", "OFF"),
        ("spark.sql.shuffle.partitions", "2"),
        ("spark.sql.streaming.pollingDelay", "20ms"),
        ("spark.sql.warehouse.dir", str(folder / "warehouse")),
    )
    return start(SessionOptions("gapless-tests", "local[2]", conf=conf, quick=True))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The run's session, with the data source."""
    session = start_session(tmp_path_factory.mktemp("spark"))
    gapless_spark.register(session)
    try:
        yield session
    finally:
        session.stop()


class Loop:
    """An event loop on a thread of its own, so that a session can be held open while Spark blocks."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Awaitable[T]) -> T:
        """Wait for the work's result."""

        async def awaited() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(PATIENCE_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


class Session:
    """A connection of its own, stepped by hand."""

    def __init__(self, loop: Loop, url: str) -> None:
        self._loop = loop
        self._connection: asyncpg.Connection = loop.run(asyncpg.connect(url))

    def execute(self, sql: str, *parameters: Any) -> None:
        self._loop.run(self._connection.execute(sql, *parameters))

    def fetch(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self._loop.run(self._connection.fetch(sql, *parameters))]

    def value(self, sql: str, *parameters: Any) -> Any:
        return self._loop.run(self._connection.fetchval(sql, *parameters))

    def publish(self, channel: str, data: str = "{}", **members: Any) -> None:
        """By SQL, in whatever transaction the session is."""
        names = "".join(f", {name} => ${n}" for n, name in enumerate(members, 3))
        self.execute(f"select gapless.publish($1, $2::jsonb{names})", channel, data, *members.values())

    def append(self, channel: str, data: Sequence[str | bytes], **members: str | None) -> list[int]:
        """As the service appends: the text or bytes as they are; `type`, `key`, `headers`, `sender` and
        `namespace` for all. Gives the ids."""
        count = len(data)
        namespace = self.value(
            "select id from gapless.namespaces where name = $1", members.pop("namespace", None) or "default"
        )
        each = {name: [members.get(name)] * count for name in ("key", "headers", "sender")}
        ids: list[int] = self.value(
            "select ids from gapless.append(array[$1::int], array[$2::text], true, null, null, null, null,"
            " null, $3::int[], $4::int[], $5::text[], $6::text[], $7::text[], $8::bytea[], $9::text[],"
            " $10::text[], array_fill(null::float8, array[$11::int]))",
            namespace,
            channel,
            list(range(1, count + 1)),
            [1] * count,
            [members.get("type") or "message"] * count,
            each["key"],
            [None if isinstance(item, bytes) else item for item in data],
            [item if isinstance(item, bytes) else None for item in data],
            each["headers"],
            each["sender"],
            count,
        )
        return ids

    def close(self) -> None:
        self._loop.run(self._close())

    async def _close(self) -> None:
        self._connection.terminate()


class Log:
    """An empty log of its own, and ways to fill and to read it."""

    def __init__(self, loop: Loop, spark: SparkSession | None, database: Database) -> None:
        self._loop = loop
        self._sessions: list[Session] = []
        self._spark = spark
        self.database = database
        self.url = database.owner_url
        self.owner = self.session()

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None, "ask for the fixture log"
        return self._spark

    def session(self, url: str | None = None) -> Session:
        """A further connection, closed with the test."""
        made = Session(self._loop, url or self.database.owner_url)
        self._sessions.append(made)
        return made

    def read(self, **options: Any) -> DataFrame:
        """A batch read, of everything unless told otherwise."""
        return self.spark.read.format("gapless").options(**({"url": self.url} | options)).load()

    def ids(self, **options: Any) -> list[int]:
        """The ids of a batch read, sorted."""
        return sorted(row.id for row in self.read(**options).select("id").collect())

    def stream(self, **options: Any) -> DataFrame:
        """A streaming read."""
        return self.spark.readStream.format("gapless").options(**({"url": self.url} | options)).load()

    def close(self) -> None:
        for session in self._sessions:
            session.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def log(plain_log: Log, spark: SparkSession) -> Log:
    """An empty log for one test, read by Spark."""
    plain_log._spark = spark
    return plain_log


@pytest.fixture
def plain_log(loop: Loop, postgres: EmbeddedPostgres | External) -> Iterator[Log]:
    """An empty log for one test, without Spark."""
    database = loop.run(make_database(postgres))
    made = Log(loop, None, database)
    yield made
    made.close()
    loop.run(drop_database(postgres, database))
