"""Splits record batches by day, and by channel if asked, without a loop over rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from gapless_spark.export.folder import Key

_DAY_US = 86_400_000_000


def split_batch(batch: pa.RecordBatch, by_channel: bool) -> Iterator[tuple[Key, pa.RecordBatch]]:
    """The rows of each partition, in id order. Most batches lie in one day and are not copied."""
    for date, rows in _by_day(batch):
        if not by_channel:
            yield (date, None), rows
            continue
        for channel, own in _by_channel(rows):
            yield (date, channel), own


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    if batch.num_rows == 0:
        return
    times = batch.column("created_at").cast(pa.int64())
    bounds = pc.min_max(times).as_py()
    first, last = bounds["min"] // _DAY_US, bounds["max"] // _DAY_US
    if first == last:
        yield _name(first), batch
        return
    # A batch has few days, because ids are nearly in the order of time.
    for day in pc.unique(pc.divide(times, _DAY_US)).to_pylist():
        inside = pc.and_(pc.greater_equal(times, day * _DAY_US), pc.less(times, (day + 1) * _DAY_US))
        yield _name(day), batch.filter(inside)


def _by_channel(batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    # Sorted by id too, so that the rows of a channel keep their order.
    ordered = batch.take(pc.sort_indices(batch, [("channel", "ascending"), ("id", "ascending")]))
    runs = pc.run_end_encode(ordered.column("channel"))
    begin = 0
    for end, channel in zip(runs.run_ends.to_pylist(), runs.values.to_pylist(), strict=True):
        yield channel, ordered.slice(begin, end - begin)
        begin = end


def _name(day: int) -> str:
    return datetime.fromtimestamp(day * _DAY_US // 1_000_000, UTC).strftime("%Y-%m-%d")
