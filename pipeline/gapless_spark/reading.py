"""Reads one range of ids as Arrow batches, in a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

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
"""How many channel names a task caches."""


class Part(InputPartition):
    """A range of ids for one task. `known` is the digest of retention's marks when the range was planned;
    None: they do not matter."""

    def __init__(self, range_: Range, known: str | None) -> None:
        super().__init__(range_)
        self.known = known


def read_part(
    options: ReadOptions, schema: StructType, part: InputPartition, patience_s: float = 0.0
) -> Iterator[pa.RecordBatch]:
    """The selected messages of a part, in batches of some megabytes, as `schema` has them. Where a database
    goes away it is waited for so long, and reading goes on where it was.

    Raises `DataLoss` before the first batch if retention took messages of the range since it was planned.
    """
    if not isinstance(part, Part) or part.value.empty:
        return
    yield from with_payload(_resumed(options, part, patience_s), schema)


def _resumed(options: ReadOptions, part: Part, patience_s: float) -> Iterator[pa.RecordBatch]:
    """The batches of a part; those of which it is known where they end, so that others can follow, are in the
    order of ids."""
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
    """Batches in `arrow_schema(columns)`: the selected messages of a range, of one state of the log.

    `known`: the digest (`retention.marks`) that the range must still have, else `DataLoss`; None: whatever is
    left. `after`: only those beyond this id of the range. Raises `DatabaseUnreachable` also in the middle.
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
    """The channels by number, where the whole range belongs to the selection: then Postgres need not look up
    the channel of each message, nor send its name with it."""
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
    """The call's answer; an error of the driver as one of ours. In the middle of an answer the driver raises
    those of Arrow."""
    from adbc_driver_manager import Error
    from pyarrow import ArrowException

    try:
        return call(*arguments)
    except (Error, ArrowException, OSError) as error:
        raise failure(error) from None
