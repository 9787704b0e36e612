"""Streaming reads of the data source.

An offset is the id up to which everything was read, the log's epoch, and a digest of what retention had
removed beyond that id (only for a reader that is behind retention). Its size does not depend on the log.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from gapless_spark.database import PATIENCE_S, connect, patiently
from gapless_spark.errors import OtherLog, Unsettled
from gapless_spark.history import check_history, epoch_of
from gapless_spark.options import ReadOptions
from gapless_spark.planning import any_in, check_start, first_offset, last_of, share
from gapless_spark.ranges import Range
from gapless_spark.retention import NONE, marks_beyond
from gapless_spark.snapshots import begin
from gapless_spark.watermark import settled

if TYPE_CHECKING:
    import pyarrow as pa
    from adbc_driver_manager.dbapi import Connection
    from pyspark.sql.types import StructType

VERSION = 1
_ADVICE = "Use a new checkpoint folder for another log"


@dataclass(frozen=True, slots=True)
class Offset:
    """Everything up to `id` was read, in `epoch`. `removed`: the digest of retention's marks beyond `id`."""

    id: int
    epoch: str
    removed: str = NONE

    def to_json(self) -> dict[str, Any]:
        """The JSON that Spark keeps in the checkpoint."""
        json: dict[str, Any] = {"version": VERSION, "epoch": self.epoch, "id": self.id}
        return json | {"removed": self.removed} if self.removed else json


def offset_of(json: dict[str, Any]) -> Offset:
    """The offset in a checkpoint. Raises `OtherLog` if this version of the package did not write it."""
    if json.get("version") != VERSION:
        raise OtherLog(
            f"the checkpoint's offset {json} was written by another version of gapless-spark, or by another "
            f"source. {_ADVICE}"
        )
    return Offset(int(json["id"]), str(json["epoch"]), str(json.get("removed", NONE)))


class GaplessStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches of settled messages. Each batch is a range of ids.

    If the database cannot be reached, a query fails at its start; a running query waits for the database.
    """

    def __init__(self, options: ReadOptions, schema: StructType, parallelism: int, zone: str = "UTC") -> None:
        self.options = options
        self.schema = schema
        self.parallelism = parallelism
        self.zone = zone
        self._last_end: int | None = None
        self._newest: Offset | None = None
        self._empty = Range(0, 0)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  (all of these names are Spark's)
        with closing(connect(self.options.url)) as connection:
            top = settled(connection)
            begin(connection, None)
            first = self._offset(connection, first_offset(connection, self.options, top))
            # A query that starts at an id needs all messages after it; any other, all messages that are kept.
            return (replace(first, removed=NONE) if self.options.start >= 0 else first).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self.options.max_messages
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with closing(connect(self.options.url)) as connection:
            self._last_end = settled(connection)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        return patiently(lambda: self._latest(start, limit))

    def _latest(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        first = offset_of(start)
        with closing(connect(self.options.url)) as connection:
            top = self._last_end
            if top is None:
                try:
                    top = settled(connection)
                except Unsettled as error:
                    # No message may be skipped, and a stream can wait: a later trigger tries again.
                    logging.getLogger("gapless_spark").warning("no new batch: %s", error)
                    return start
            # One snapshot, so that the check and the new offset see the same messages.
            begin(connection, None)
            self._check(connection, first, top)
            reached = self._reach(connection, first.id, top, limit)
            self._newest = first if reached is None else Offset(top, first.epoch)
            if reached is None:
                return start
            return self._offset(connection, reached).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._newest is None else self._newest.to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = offset_of(start), offset_of(end)
        if last.id <= first.id:
            return []
        return patiently(lambda: self._shared(first, Range(first.id, last.id)))

    def _shared(self, first: Offset, whole: Range) -> Sequence[InputPartition]:
        with closing(connect(self.options.url)) as connection:
            begin(connection, None)
            self._check(connection, first, None)
            return share(connection, self.options, whole, self.parallelism)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from gapless_spark.reading import read_part

        return read_part(self.options, self.schema, partition, PATIENCE_S, self.zone)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the checkpoint is the only state."""

    def stop(self) -> None:
        """Does nothing: no connection is open between two calls."""

    def _reach(self, connection: Connection, lower: int, upper: int, limit: ReadLimit) -> int | None:
        """The last id of the next batch; None if there is nothing to read."""
        # A settled range without selected messages stays so, and is not read again. So a stream of quiet
        # channels in a busy log has no empty batches, and no repeated queries for the same ids.
        seen = self._empty.upper if self._empty.lower <= lower <= self._empty.upper else lower
        if seen >= upper:
            return None
        reached: int | None
        if isinstance(limit, ReadMaxRows):
            reached = last_of(connection, self.options, seen, upper, limit.max_rows)
        else:
            reached = upper if any_in(connection, self.options, seen, upper) else None
        if reached is None:
            self._empty = Range(lower, upper)
        return reached

    def _offset(self, connection: Connection, id_: int) -> Offset:
        return Offset(id_, epoch_of(connection), marks_beyond(connection, self.options.selection, id_))

    def _check(self, connection: Connection, offset: Offset, top: int | None) -> None:
        """Raises `OtherLog` or `DataLoss` if the query cannot continue from an offset."""
        check_history(
            connection,
            offset.epoch,
            offset.id,
            what="The checkpoint",
            fail_on_loss=self.options.fail_on_data_loss,
            advice=_ADVICE,
        )
        if top is not None and offset.id > top:
            raise OtherLog(
                f"the checkpoint is at id {offset.id}, and the newest id of this log is {top}: the "
                f"database was restored from a backup. {_ADVICE}"
            )
        if self.options.fail_on_data_loss:
            check_start(connection, self.options, offset.id, offset.removed)
