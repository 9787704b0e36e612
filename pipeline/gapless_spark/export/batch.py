"""One batch: which ids it has, how they are split into tasks, and the entry that results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapless_spark.database import rollback, rows
from gapless_spark.export.errors import OtherExport, from_wire
from gapless_spark.export.folder import partition_folder
from gapless_spark.export.ledger import Entry, Open, Published, Totals
from gapless_spark.export.options import ExportOptions
from gapless_spark.planning import last_until
from gapless_spark.ranges import Range, split
from gapless_spark.retention import lost, marks_beyond
from gapless_spark.selection import Selection
from gapless_spark.snapshots import begin
from gapless_spark.watermark import settled

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

TASK_ROWS = 200_000
"""The fewest rows for a second task: each task makes its own files, and reads so many rows in half a
second."""
OPEN_FILES = 64
"""The most files of a partition that later batches may extend or merge: the newest."""
OPEN_DAYS = 2
"""Only files of the newest days are extended, because rows arrive nearly in the order of time."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a batch reads. `parts`: adjacent ranges of ids; none if nothing is selected. `upper`: the id at
    which the batch ends, with or without parts. `top`: the highest id that can be read now. `known`: the
    digest of retention's marks beyond `upper`."""

    snapshot: str
    parts: tuple[Range, ...]
    upper: int
    top: int
    known: str


@contextmanager
def planned(
    connection: Connection, options: ExportOptions, position: int, known: str, most: int | None = None
) -> Iterator[Plan]:
    """Plan the batch after `position`, up to the id `most` if given, in a snapshot that tasks can read until
    the block ends.

    Raises `DataLoss` if retention removed messages beyond `position` since `known`, unless that is allowed;
    `OtherExport` if the log ends before `position`; and the errors of `settled`.
    """
    selection = options.shape.selection
    top = settled(connection)
    if top < position:
        raise OtherExport(
            f"{options.root} holds messages up to id {position}, and the log ends at {top}: it was restored"
            " from an older backup, or is another one. Export to a new folder"
        )
    begin(connection, None)
    try:
        top = last_until(connection, selection, top if most is None else min(top, most))
        if not options.allow_loss and marks_beyond(connection, selection, position) != known:
            lost(connection, selection, position)
        parts = share(connection, options, selection, Range(min(position, top), top))
        upper = parts[-1].upper if parts else max(position, top)
        ((snapshot,),) = rows(connection, "select pg_export_snapshot()")
        digest = marks_beyond(connection, selection, upper)
        yield Plan(snapshot, tuple(parts), upper, top, digest)
    finally:
        rollback(connection)


def share(connection: Connection, options: ExportOptions, selection: Selection, whole: Range) -> list[Range]:
    """The parts of the next batch: all of `whole`, or its beginning if it has too many messages for one
    batch."""
    if whole.empty or not holds_any(connection, selection, whole):
        return []
    # Ids are unique numbers, so a short range has few messages and need not be counted.
    if whole.upper - whole.lower <= TASK_ROWS:
        return [whole]
    count = at_most(connection, selection, whole)
    batches = max(1, -(-count // options.batch_rows))
    tasks = max(1, min(options.tasks, count // batches // TASK_ROWS))
    parts = split(connection, selection, whole, batches * tasks)
    return parts[:tasks]


def holds_any(connection: Connection, selection: Selection, whole: Range) -> bool:
    """Whether any message in the range is selected."""
    ((found,),) = rows(connection, f"select exists(select {selection.source(whole.lower, whole.upper)})")
    return bool(found)


def at_most(connection: Connection, selection: Selection, whole: Range) -> int:
    """An upper bound of the selected messages in a range, from what the channels keep and the number of
    ids."""
    ((kept, newest),) = rows(
        connection,
        "select coalesce(sum(least(c.last_seq - c.first_seq + 1, greatest(c.last_id - $1, 0))), 0)::bigint"
        " as kept, coalesce(max(c.last_id), 0) as newest from gapless.channels c"
        f" where {selection.channel_clause()} and c.last_seq >= c.first_seq",
        (whole.lower,),
    )
    return max(0, min(int(kept), whole.upper - whole.lower, int(newest) - whole.lower))


def gather(answers: Sequence[str]) -> tuple[Published, ...]:
    """The files in the tasks' answers. Raises the error of a task, if any."""
    files: list[Published] = []
    for answer in answers:
        facts: dict[str, Any] = json.loads(answer)
        if "error" in facts:
            raise from_wire(facts["error"])
        files.append(Published(**{**facts, "replaces": tuple(facts["replaces"])}))
    return tuple(files)


def entry(last: Entry, upper: int, known: str, files: tuple[Published, ...], file_bytes: int) -> Entry:
    """The entry of the batch up to `upper`, which follows `last`."""
    before = {file.path: file for open_ in last.open.values() for file in open_}
    replaced = [before[path] for file in files for path in file.replaces]
    added = sum(file.rows for file in files) - sum(file.rows for file in replaced)
    totals = Totals(
        last.totals.rows + added,
        last.totals.files + len(files) - len(replaced),
        last.totals.bytes + sum(file.bytes for file in files) - sum(file.bytes for file in replaced),
    )
    return Entry(
        number=last.number + 1,
        lower=last.upper,
        upper=upper,
        rows=added,
        known=known,
        totals=totals,
        files=files,
        open=still_open(last.open, files, file_bytes),
    )


def still_open(
    before: Mapping[str, tuple[Open, ...]], files: tuple[Published, ...], file_bytes: int
) -> dict[str, tuple[Open, ...]]:
    """The files that later batches may extend or merge: those of the newest days that are below the target
    size."""
    open_ = {key: {file.path: file for file in files_} for key, files_ in before.items()}
    for file in files:
        own = open_.setdefault(partition_folder(file.date, file.channel), {})
        for path in file.replaces:
            own.pop(path)
        if file.bytes < file_bytes * 3 // 4:
            own[file.path] = Open(
                file.date, file.channel, file.path, file.bytes, file.rows, file.groups, file.level
            )
    days = sorted({key.partition("/")[0] for key, own in open_.items() if own})[-OPEN_DAYS:]
    return {
        key: tuple(own.values())[-OPEN_FILES:]
        for key, own in open_.items()
        if own and key.partition("/")[0] in days
    }
