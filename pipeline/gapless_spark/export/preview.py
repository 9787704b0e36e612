"""The dry run of an export: shows what a run would do, and writes nothing."""

from __future__ import annotations

from typing import Any

from gapless_spark.database import close, connect, rows
from gapless_spark.export.batch import at_most
from gapless_spark.export.errors import OtherExport
from gapless_spark.export.ledger import Ledger
from gapless_spark.export.options import ExportOptions
from gapless_spark.planning import id_before, last_until
from gapless_spark.ranges import Range
from gapless_spark.snapshots import begin
from gapless_spark.watermark import settled

EXACT_IDS = 20_000_000
BYTES_A_ROW = 120


def look(options: ExportOptions) -> dict[str, Any]:
    """What a run would export: bounds of ids, number of messages and of files, and whether it resumes.

    The number of messages is exact up to `EXACT_IDS`, else an upper bound; the number of files is an
    estimate. Writes nothing. Raises `GaplessSparkError`.
    """
    ledger = Ledger(options.root)
    charter = ledger.charter()
    ledger.check_folder()
    last = ledger.last() if charter is not None else None
    selection = options.shape.selection
    connection = connect(options.url)
    try:
        top = settled(connection)
        begin(connection, None)
        selection.check_namespace(connection)
        if last is not None:
            start = last.upper
        elif charter is not None:
            start = charter.start
        else:
            start = id_before(connection, selection.since) if selection.since else 0
        top = last_until(connection, selection, top)
        if last is not None and top < start:
            raise OtherExport(
                f"{options.root} ends at id {start}, and the log ends at {top}: this is another log"
            )
        whole = Range(min(start, top), top)
        count, exact = at_most(connection, selection, whole), False
        if count <= EXACT_IDS:
            ((count,),) = rows(connection, f"select count(*) {selection.source(whole.lower, whole.upper)}")
            exact = True
    finally:
        close(connection)
    size = last.totals.bytes / last.totals.rows if last is not None and last.totals.rows else BYTES_A_ROW
    return {
        "folder": str(options.root),
        "format": options.shape.format,
        "resumes": last is not None,
        "after": start,
        "upto": max(top, start),
        "messages": int(count),
        "exact": exact,
        "files": max(1, round(count * size / options.file_bytes)) if count else 0,
        "exported": last.totals.rows if last is not None else 0,
    }


def sentences(found: dict[str, Any]) -> list[str]:
    """The result of `look` in sentences for a person."""
    about = "" if found["exact"] else "at most "
    there = f"resumes after {found['exported']:,} messages" if found["resumes"] else "starts a new export"
    return [
        f"{found['folder']} ({found['format']}): {there}, after id {found['after']}",
        f"{about}{found['messages']:,} messages up to id {found['upto']}, in about {found['files']:,} files"
        " or one a day and channel",
    ]
