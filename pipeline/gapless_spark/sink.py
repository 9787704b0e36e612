"""The sink `gapless`: publishes each row of a DataFrame once, even if Spark repeats a task or a batch.

    df.write.format("gapless").options(url=…, channel="orders", writeId="2026-11-20").mode("append").save()
    df.writeStream.format("gapless").option("url", …).option("checkpointLocation", …).start()

Columns: `data` (the text of a JSON value) or `binary`, exactly one of them in a row; `channel`, unless the
option of that name gives one for all; optionally `type`, `key`, `headers` (map<string,string>) and `ttl`
(seconds). A row with a `target` changes that message: `action`, `through`, `annotation`, `mode` and `remove`
say how, as the source reads them with its option `changes`. Such a row may be without a payload. Columns
that the service sets (`id`, `seq`, `sender`, `created_at`) are ignored; any other column is refused.
Options: `url` of a login with the grant `gapless.grant_publisher`, which also tells the namespace and the
sender; `namespace`, only for a login that needs no grant (`default`); `channel`; `writeId`, by which a batch
write is recognised when the job runs again within 30 days (without it each write is new); `verifyReruns`
(`true`): refuse a repeated batch with another number of rows; `refusedChanges` (`fail`): with `skip` changes
that are refused are left out, counted and logged. In a channel, rows keep their order within a partition,
and partitions theirs. The sink sends no hints: live readers find the messages by the sweep, within a second.

A task stages its rows in Postgres, invisible to readers (`gapless.spark_stage`). When all tasks of a batch
are done, the driver decides which attempts make up the batch (`spark_bind`) and publishes them
(`spark_publish`): a partition in one transaction, several small ones together. A repeated task stages its
rows again, and only the attempt that Spark counts is published. A repeated batch finds the decision and
continues from there. A task cannot publish by itself: Python's TaskContext does not tell the number of
partitions, so a batch that runs again with other partitions would publish rows twice.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from gapless_spark.errors import BadOption, GaplessSparkError
from gapless_spark.sink_errors import PartitionTooLarge
from gapless_spark.sink_rows import SinkColumns, sink_columns
from gapless_spark.sink_store import (
    CHANGE_ROWS,
    CHANGES_SCHEMA,
    SCHEMA,
    TRANSACTION_BYTES,
    TRANSACTION_CHANNELS,
    TRANSACTION_ROWS,
    BatchKey,
    Store,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_ONE_WRITE: Final = -1
"""The batch number of a write that does not belong to a query."""
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_RUN_ID: Final = "spark.jobGroup.id"


@dataclass(frozen=True, slots=True)
class Target:
    """The options of a write. `verify` refuses a repeated batch with another number of rows; `skip` leaves
    changes out that are refused."""

    url: str = field(repr=False)
    namespace: str | None
    columns: SinkColumns
    verify: bool
    skip: bool = False

    def store(self) -> Store:
        return Store(self.url, schema=CHANGES_SCHEMA if self.columns.changes or self.skip else SCHEMA)


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """A task's message to the driver: the number of rows in its partition, and the attempt that staged them
    (None: there are no rows, or the batch is bound already)."""

    key: BatchKey
    partition: int
    rows: int
    attempt: str | None


class GaplessWriter(DataSourceArrowWriter):
    """A batch write. Jobs with the same write id publish their rows only once."""

    def __init__(self, target: Target, write_id: str) -> None:
        self.target = target
        self._run = str(uuid.uuid4())
        self._key = BatchKey(target.namespace, write_id, _ONE_WRITE)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a partition, in a task. Raises `BadRow`, `PartitionTooLarge`, and the errors of `Store`."""
        from pyspark import TaskContext

        context = TaskContext.get()
        return stage(self.target, self._key, self._run, context.partitionId() if context else 0, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish, in the driver, after the last task. Raises `BatchChanged`, `BatchIncomplete` and
        `ChangeRefused`."""
        publish(self.target, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove staged rows, in the driver, after a failure. Rows of a bound batch stay."""
        discard(self.target, messages)


class GaplessStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write. The checkpoint identifies query and batch."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage a partition, in a task. Raises `BadRow`, `PartitionTooLarge`, and the errors of `Store`."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context else None
        batch = context.getLocalProperty(_BATCH_ID) if context else None
        if context is None or query is None or batch is None:
            raise GaplessSparkError(
                f"Spark does not tell which batch this is ({_QUERY_ID}, {_BATCH_ID}), so it could be"
                " published twice. Use foreachBatch, and in it a batch write with the option writeId"
            )
        key = BatchKey(self.target.namespace, query, int(batch))
        run = context.getLocalProperty(_RUN_ID) or ""
        return stage(self.target, key, run, context.partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish, in the driver, after the last task. Raises `BatchChanged`, `BatchIncomplete` and
        `ChangeRefused`."""
        assert all(m.key.batch == batchId for m in messages if isinstance(m, Staged))
        publish(self.target, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove staged rows, in the driver, after a failure. Rows of a bound batch stay."""
        discard(self.target, messages)


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> GaplessWriter:
    """The writer of `df.write`. Raises `BadOption`."""
    write_id = _lowered(options).get("writeid") or str(uuid.uuid4())
    if len(write_id) > 255 or "\0" in write_id:
        raise BadOption("writeId: is longer than 255 characters, or holds a zero character")
    return GaplessWriter(_target(options, schema, overwrite), write_id)


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> GaplessStreamWriter:
    """The writer of `df.writeStream`. Raises `BadOption`."""
    if "writeid" in _lowered(options):
        raise BadOption("writeId: is for batch writes; a streaming query is known by its checkpoint")
    return GaplessStreamWriter(_target(options, schema, overwrite))


def _lowered(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _target(options: Mapping[str, str], schema: StructType, overwrite: bool) -> Target:
    given = _lowered(options)
    if overwrite:
        raise BadOption(
            'mode: messages are immutable, so use mode("append"), or outputMode("append") or "update"'
        )
    if not given.get("url"):
        raise BadOption("url: is missing; give postgresql://user@host:5432/database")
    verify = given.get("verifyreruns", "true").lower()
    if verify not in ("true", "false"):
        raise BadOption(f"verifyReruns: {verify!r} is neither true nor false")
    refused = given.get("refusedchanges", "fail").lower()
    if refused not in ("fail", "skip"):
        raise BadOption(f"refusedChanges: {refused!r} is neither fail nor skip")
    columns = sink_columns(schema, given.get("channel"))
    return Target(given["url"], given.get("namespace"), columns, verify == "true", refused == "skip")


def stage(
    target: Target, key: BatchKey, run: str, partition: int, batches: Iterator[pa.RecordBatch]
) -> Staged:
    """Stage the rows of one attempt at a partition. If the batch is bound already, only count them."""
    begun = Staged(key, partition, 0, str(uuid.uuid4()))
    try:
        with target.store() as store:
            return _stage(store, target.columns, begun, run, batches)
    except BaseException:
        discard(target, [begun])
        raise


def _stage(
    store: Store, columns: SinkColumns, begun: Staged, run: str, batches: Iterator[pa.RecordBatch]
) -> Staged:
    attempt = begun.attempt
    rows = weight = size = 0
    names: set[str] = set()
    for number, chunk in enumerate(columns.chunks(batches, f"partition {begun.partition}")):
        rows += chunk.rows
        weight += chunk.rows + (CHANGE_ROWS - 1) * chunk.changes
        size += chunk.size
        names.update(chunk.names)
        if weight > TRANSACTION_ROWS or size > TRANSACTION_BYTES or len(names) > TRANSACTION_CHANNELS:
            raise PartitionTooLarge(
                f"partition {begun.partition} has more than {TRANSACTION_ROWS:,} rows (a change counts as"
                f" {CHANGE_ROWS}), {TRANSACTION_BYTES // 2**20} MiB or {TRANSACTION_CHANNELS:,} channels,"
                " which is too much for one transaction. Nothing of this batch is stored. Use"
                " df.repartition(n) with a larger n before writing, or df.repartition(n, 'channel') if it is"
                " the channels"
            )
        if attempt is not None and not store.stage(begun.key, run, attempt, number, chunk):
            attempt = None
    return Staged(begun.key, begun.partition, rows, attempt if rows else None)


def publish(target: Target, messages: list[WriterCommitMessage | None]) -> None:
    """Binds the batch and publishes its rows. Of a batch that was bound before, it publishes the rest."""
    parts = sorted((m for m in messages if isinstance(m, Staged)), key=lambda m: m.partition)
    if not parts:
        return
    key = parts[0].key
    attempts = {m.attempt: m.rows for m in parts if m.attempt is not None}
    with target.store() as store:
        store.bind(key, list(attempts), list(attempts.values()), sum(m.rows for m in parts), target.verify)
        store.publish(key, skip=target.skip)
        # Rows that are not removed now are removed after a later batch.
        with suppress(GaplessSparkError):
            store.tidy(key)


def discard(target: Target, messages: list[WriterCommitMessage | None]) -> None:
    """Removes staged rows that are not needed. Rows that cannot be removed now are removed after a week."""
    attempts = [m.attempt for m in messages if isinstance(m, Staged) and m.attempt is not None]
    if attempts:
        with suppress(GaplessSparkError), Store(target.url, patience_s=1.0) as store:
            store.discard(attempts)
