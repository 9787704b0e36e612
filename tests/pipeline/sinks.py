"""What the sink's tests share: logins with one role each, and batches staged by hand."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Sequence

import asyncpg
import pyarrow as pa
from gapless_spark.sink_rows import SinkColumns
from gapless_spark.sink_store import BatchKey, Store

from tests.conftest import Database

KEY = BatchKey("default", "q", 7)
COLUMNS = SinkColumns(frozenset({"channel", "data"}), None)
TABLES = ("spark_batches", "spark_attempts", "spark_chunks")


async def login(database: Database, kind: str, name: str = "", grant: str = "") -> str:
    """The URL of a login that was granted to be a `publisher` or a `reader` here, and nothing else. `grant`:
    further arguments of the grant."""
    name = name or f"test_{kind}"
    admin = await asyncpg.connect(database.admin_url)
    # Roles belong to the whole server: another test may have made it.
    with contextlib.suppress(asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError):
        await admin.execute(f"create role {name} login")
    await admin.close()
    owner = await asyncpg.connect(database.owner_url)
    await owner.execute(f"select gapless.grant_{kind}('{name}'{grant and ', ' + grant})")
    await owner.close()
    return database.owner_url.replace("gapless_owner@", f"{name}@", 1)


def staged(store: Store, key: BatchKey, data: Sequence[str], run: str = "run 1") -> str:
    """An attempt with these payloads."""
    attempt = str(uuid.uuid4())
    batch = pa.record_batch({"channel": ["a"] * len(data), "data": list(data)})
    for number, chunk in enumerate(COLUMNS.chunks(iter([batch]), "partition 0")):
        assert store.stage(key, run, attempt, number, chunk)
    return attempt


def bind(store: Store, key: BatchKey, *partitions: tuple[str, int], verify: bool = True) -> None:
    """Decide that the batch is these attempts, with so many rows each."""
    rows = [count for _, count in partitions]
    store.bind(key, [attempt for attempt, _ in partitions], rows, sum(rows), verify)


async def counts(owner: asyncpg.Connection) -> tuple[int, ...]:
    """Rows of the ledger, of attempts and of chunks."""
    return tuple([await owner.fetchval(f"select count(*) from gapless.{table}") for table in TABLES])
