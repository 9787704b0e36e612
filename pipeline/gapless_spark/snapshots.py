"""One view of the log for many readers: a snapshot that Postgres exports and readers import.

Messages at or below a settled id never change, but retention may remove some between two reads. With a
snapshot, which needs a connection held open, all reads see the same messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gapless_spark.database import close, connect, literal, rollback, rows, run
from gapless_spark.errors import QueryFailed, SnapshotGone
from gapless_spark.watermark import PATIENCE_S, settled

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An exported snapshot, and the id that was settled just before it was taken."""

    url: str = field(repr=False)
    name: str
    settled: int

    @property
    def options(self) -> dict[str, str]:
        """Options for `spark.read.format("gapless")`: every read with them sees the same messages."""
        return {"url": self.url, "snapshot": self.name, "endingOffsets": str(self.settled)}


@contextmanager
def snapshot(url: str, patience_s: float = PATIENCE_S) -> Iterator[Snapshot]:
    """Hold a snapshot of the log at `url` open while the block runs.

        with gapless_spark.snapshot(url) as view:
            df = spark.read.format("gapless").options(**view.options).load()

    Actions on `df` must run in the block. Meanwhile Postgres keeps removed rows, and no segment is dropped,
    so the block may take hours but not days. Raises the errors of `connect` and `settled`.
    """
    connection = connect(url)
    try:
        upto = settled(connection, patience_s)
        begin(connection, None)
        ((name,),) = rows(connection, "select pg_export_snapshot()")
        yield Snapshot(url, str(name), upto)
    finally:
        close(connection)


def begin(connection: Connection, imported: str | None) -> None:
    """Begin a transaction with one snapshot of the log: the imported one if it is given, else a new one.

    Segments are locked before a new snapshot is taken, so that none is dropped while it is read: an older
    snapshot does not bring back a dropped table. Raises `SnapshotGone`.
    """
    rollback(connection)
    run(connection, "set transaction isolation level repeatable read, read only")
    if imported is not None:
        try:
            run(connection, f"set transaction snapshot {literal(imported)}")
        except QueryFailed as error:
            raise SnapshotGone(
                f"snapshot {imported!r} is gone ({error}). Read within the block that gapless_spark.snapshot "
                "opens"
            ) from None
    run(connection, "lock table gapless.messages in access share mode")
