"""Decides where a read begins and ends, and splits it into parts for tasks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from gapless_spark.database import close, connect, literal, rows
from gapless_spark.errors import BadOption
from gapless_spark.options import EARLIEST, LATEST, ReadOptions
from gapless_spark.ranges import Range, split
from gapless_spark.reading import Part
from gapless_spark.retention import NONE, lost, marks, marks_beyond
from gapless_spark.snapshots import begin
from gapless_spark.watermark import settled

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

    from gapless_spark.selection import Selection

PART_MESSAGES = 5_000
"""The fewest messages of a task, unless a number of partitions is asked for: reading so many takes less time
than starting a task."""
_CROSSING = timedelta(seconds=20)
"""Twice the difference between the clocks of concurrent writers that `gapless.id_before` allows."""


def plan_batch(options: ReadOptions, parallelism: int) -> list[Part]:
    """The parts of a batch read: all settled messages between its bounds."""
    connection = connect(options.url)
    try:
        top = settled(connection) if options.snapshot is None else options.end
        begin(connection, options.snapshot)
        whole = bounds(connection, options, top)
        if options.fail_on_data_loss and options.start >= 0:
            check_start(connection, options, whole.lower)
        return share(connection, options, whole, parallelism)
    finally:
        close(connection)


def bounds(connection: Connection, options: ReadOptions, top: int) -> Range:
    """The ids of a batch read; `top` is the settled id. Raises `BadOption` for ids beyond it."""
    for name, id_ in (("startingOffsets", options.start), ("endingOffsets", options.end)):
        if id_ > top:
            raise BadOption(f"{name}: {id_} lies beyond the log, whose newest id is {top}")
    selection = options.selection
    lower = options.start if options.start >= 0 else 0
    if selection.since is not None:
        lower = min(id_before(connection, selection.since), top)
    upper = min(top if options.end == LATEST else options.end, last_until(connection, selection, top))
    return Range(min(lower, upper), upper)


def last_until(connection: Connection, selection: Selection, top: int) -> int:
    """An id, at most `top`, above which no message is before the selection's end time."""
    if selection.until is None:
        return top
    return min(top, id_before(connection, selection.until + _CROSSING))


def share(connection: Connection, options: ReadOptions, whole: Range, parallelism: int) -> list[Part]:
    """The parts of a range, with retention's marks if losses are errors."""
    if options.min_partitions is None:
        ranges = split(connection, options.selection, whole, max(parallelism, 1), least=PART_MESSAGES)
    else:
        ranges = split(connection, options.selection, whole, options.min_partitions)
    if not options.fail_on_data_loss:
        return [Part(range_, None) for range_ in ranges]
    digests = marks(connection, options.selection, ranges)
    return [Part(range_, digest) for range_, digest in zip(ranges, digests, strict=True)]


def check_start(connection: Connection, options: ReadOptions, id_: int, known: str = NONE) -> None:
    """Raises `DataLoss` if retention removed messages after `id_` that the digest `known` does not cover."""
    if marks_beyond(connection, options.selection, id_) != known:
        lost(connection, options.selection, id_)


def first_offset(connection: Connection, options: ReadOptions, top: int) -> int:
    """The id after which a stream begins; `top` is the settled id."""
    if options.start == LATEST:
        return top
    if options.start >= 0:
        return bounds(connection, options, top).lower
    if options.selection.since is None:
        assert options.start == EARLIEST
        return 0
    # Exactly before the first message of that time, so that earlier messages that retention removed are no
    # loss.
    lower = min(id_before(connection, options.selection.since), top)
    ((first,),) = rows(connection, f"select min(m.id) {options.selection.source(lower, top)}")
    return top if first is None else int(first) - 1


def last_of(connection: Connection, options: ReadOptions, lower: int, upper: int, most: int) -> int | None:
    """The id of the selected message number `most` in a range; `upper` if there are fewer, None if there are
    none."""
    page = f"select m.id {options.selection.source(lower, upper)} order by m.id limit {most:d}"
    ((count, last),) = rows(connection, f"select count(*), max(p.id) from ({page}) p")
    if not count:
        return None
    return upper if count < most else int(last)


def any_in(connection: Connection, options: ReadOptions, lower: int, upper: int) -> bool:
    """Whether a range has a selected message."""
    if lower >= upper:
        return False
    ((found,),) = rows(connection, f"select exists(select {options.selection.source(lower, upper)})")
    return bool(found)


def id_before(connection: Connection, time: datetime) -> int:
    """An id such that all messages at or below it were created before `time`, and nearly none above it."""
    ((id_,),) = rows(connection, f"select gapless.id_before({literal(time.isoformat())}::timestamptz)")
    return int(id_)
