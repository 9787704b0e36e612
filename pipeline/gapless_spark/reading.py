"""Reads one range of ids as Arrow batches, in a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from gapless_spark.columns import to_batches
from gapless_spark.database import close, connect, failure, patiently, rows
from gapless_spark.errors import DatabaseUnreachable
from gapless_spark.options import ReadOptions
from gapless_spark.payload import with_payload
from gapless_spark.ranges import Range
from gapless_spark.retention import lost, marks
from gapless_spark.selection import Selection
from gapless_spark.snapshots import begin

if TYPE_CHECKING:
    import pyarrow as pa
    from adbc_driver_manager.dbapi import Connection
    from pyspark.sql.types import StructType


MOST_NAMES = 10_000
"""The most channel names that a task loads."""


class Part(InputPartition):
    """A range of ids for one task. `known` is the digest of retention's marks when the range was planned;
    None: they do not matter."""

    def __init__(self, range_: Range, known: str | None) -> None:
        super().__init__(range_)
        self.known = known


def read_part(
    options: ReadOptions,
    schema: StructType,
    part: InputPartition,
    patience_s: float = 0.0,
    zone: str = "UTC",
) -> Iterator[pa.RecordBatch]:
    """The selected messages of a part, in batches of some megabytes, in the given schema. If the database
    goes down, this waits for it for `patience_s`, and continues after the last batch. `zone` is the time
    zone of a session that did not set one.

    Raises `DataLoss` before the first batch if retention removed messages of the range since it was planned.
    """
    if not isinstance(part, Part) or part.value.empty:
        return
    yield from with_payload(_resumed(options, part, patience_s), schema, _zone_of_task() or zone)


def _zone_of_task() -> str | None:
    """The time zone that the session has now, if it was ever set; Spark hands its settings to each task."""
    task = TaskContext.get()
    return None if task is None else task.getLocalProperty("spark.sql.session.timeZone")


def _resumed(options: ReadOptions, part: Part, patience_s: float) -> Iterator[pa.RecordBatch]:
    """The batches of a part. With patience they are in id order, so that a read can continue after the last
    id."""
    after: int | None = None

    def read() -> Iterator[pa.RecordBatch]:
        return read_range(
            options.url,
            options.selection,
            options.columns,
            part.value,
            known=part.known,
            snapshot=options.snapshot,
            ordered=patience_s > 0,
            after=after,
        )

    batches: Iterator[pa.RecordBatch] | None = None

    def following() -> pa.RecordBatch | None:
        nonlocal batches
        batches = batches or read()
        try:
            return next(batches, None)
        except DatabaseUnreachable:
            batches = None
            raise

    while (batch := patiently(following, patience_s)) is not None:
        yield batch
        after = batch.column("id")[-1].as_py()


def read_range(
    url: str,
    selection: Selection,
    columns: Sequence[str],
    range_: Range,
    *,
    known: str | None = None,
    snapshot: str | None = None,
    ordered: bool = False,
    after: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """The selected messages of a range, in one snapshot, as batches in `arrow_schema(columns)`.

    `known`: the digest (`retention.marks`) that the range must still have, else `DataLoss`; None: no check.
    `after`: only messages after this id. May raise `DatabaseUnreachable` between batches too.
    """
    lower = range_.lower if after is None else after
    connection = connect(url, schema=0)
    try:
        begin(connection, snapshot)
        if known is not None and marks(connection, selection, [range_]) != [known]:
            lost(connection, selection, range_.lower)
        names = _names(connection, selection, range_)
        select = selection.sql if names is None else selection.whole_sql
        with connection.cursor() as cursor:
            fetched = _guarded(_fetch, cursor, select(columns, lower, range_.upper, ordered=ordered))
            yield from to_batches(_each(fetched), columns, names)
    finally:
        close(connection)


def _names(connection: Connection, selection: Selection, range_: Range) -> dict[int, str] | None:
    """The names of channels by number, if the whole range is in the selection, else None. With them, Postgres
    need not look up each message's channel, nor send its name."""
    if not selection.everything:
        return None
    found = rows(
        connection,
        f"select c.id, c.name::text from gapless.channels c where {selection.whole_clause(range_.lower)}"
        f" limit {MOST_NAMES + 1}",
    )
    return dict(found) if 0 < len(found) <= MOST_NAMES else None


def _fetch(cursor: Any, sql: str) -> pa.RecordBatchReader:
    cursor.execute(sql)
    return cursor.fetch_record_batch()


def _each(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    while (batch := _guarded(next, reader, None)) is not None:
        yield batch


def _guarded(call: Callable[..., Any], *arguments: Any) -> Any:
    """Make a call, and turn errors of the driver into ours. While an answer is read, the driver raises
    Arrow's errors."""
    from adbc_driver_manager import Error
    from pyarrow import ArrowException

    try:
        return call(*arguments)
    except (Error, ArrowException, OSError) as error:
        raise failure(error) from None
