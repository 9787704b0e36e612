"""Ranges of ids, and how to split one into parts with about equal numbers of messages.

Equal numbers of ids would not do: ids have voids (rolled-back transactions), jumps (segments begin at
multiples of 2^24), and messages that are not selected. So the ids of selected messages are read: all of them
if they are few, else those on some hundreds of random pages of the range's segments.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from gapless_spark.database import rows

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

    from gapless_spark.selection import Selection

EXACT_MESSAGES = 100_000
SAMPLED_PAGES = 600
_SEED = 20_261_120


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """The ids `lower < id <= upper`; empty if the bounds are equal."""

    lower: int
    upper: int

    def __post_init__(self) -> None:
        assert 0 <= self.lower <= self.upper, f"not a range: ({self.lower}, {self.upper}]"

    @property
    def empty(self) -> bool:
        return self.lower == self.upper


def split(
    connection: Connection, selection: Selection, whole: Range, parts: int, *, least: int = 1
) -> list[Range]:
    """Split `whole` into at most `parts` adjacent ranges, in order, with about equal numbers of selected
    messages, at least `least` in each. One range if there are too few messages; none if `whole` is empty.

    Reads at most `EXACT_MESSAGES` index entries or `SAMPLED_PAGES` pages.
    """
    assert parts > 0
    if whole.empty:
        return []
    if parts == 1:
        return [whole]
    ids, exact = _sample(connection, selection, whole)
    return cut(whole, ids, min(parts, len(ids) // least) if exact else parts)


def cut(whole: Range, ids: list[int], parts: int) -> list[Range]:
    """Cut `whole` at the quantiles of the sorted `ids`. One range if `parts` is below 2."""
    inside = ids[bisect_right(ids, whole.lower) : bisect_right(ids, whole.upper)]
    bounds = {
        inside[len(inside) * part // parts - 1] for part in range(1, parts) if len(inside) * part >= parts
    }
    edges = [whole.lower, *sorted(bounds - {whole.upper}), whole.upper]
    return [Range(lower, upper) for lower, upper in pairwise(edges)]


def _sample(connection: Connection, selection: Selection, whole: Range) -> tuple[list[int], bool]:
    """Sorted ids of selected messages, and whether these are all. If there are many, only those of random
    pages."""
    source = selection.source(whole.lower, whole.upper)
    if _at_most(connection, selection, whole) <= EXACT_MESSAGES:
        return [id_ for (id_,) in rows(connection, f"select m.id {source} order by m.id")], True
    ((pages,),) = rows(
        connection,
        "select coalesce(sum(pg_relation_size(format('gapless.messages_%s', g.lower)::regclass)), 0)::bigint"
        " / current_setting('block_size')::bigint from gapless.segments g"
        " where g.lower <= $1 and g.upper > $2",
        (whole.upper, whole.lower),
    )
    percent = min(100.0, 100.0 * SAMPLED_PAGES / max(pages, 1))
    sampled = source.replace(
        "gapless.messages m", f"gapless.messages m tablesample system ({percent:.6f}) repeatable ({_SEED})", 1
    )
    return [id_ for (id_,) in rows(connection, f"select m.id {sampled} order by m.id")], False


def _at_most(connection: Connection, selection: Selection, whole: Range) -> int:
    """An upper bound of the selected messages in a range, from what the channels keep and the number of
    ids."""
    ((kept,),) = rows(
        connection,
        "select coalesce(sum(least(c.last_seq - c.first_seq + 1, greatest(c.last_id - $1, 0))), 0)::bigint"
        f" from gapless.channels c where {selection.channel_clause()} and c.last_seq >= c.first_seq",
        (whole.lower,),
    )
    return min(int(kept), whole.upper - whole.lower)
