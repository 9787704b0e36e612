"""Finds out whether retention removed messages that a reader still needs.

A channel's mark is the id of the newest message that retention removed from it. A reader that stands at an id
and finds a mark beyond it has lost something, unless the mark was there when it began ("the oldest that is
kept" is all it asked for). So what it carries along is a digest of the marks beyond it that it knows of: one
number whatever the number of channels, and none at all for a reader that is ahead of retention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from gapless_spark.database import rows
from gapless_spark.errors import DataLoss
from gapless_spark.options import MAX_ID
from gapless_spark.ranges import Range

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

    from gapless_spark.selection import Selection

NONE = ""
"""The digest of no marks."""


def marks(connection: Connection, selection: Selection, ranges: Sequence[Range]) -> list[str]:
    """A digest a range of the marks of the selected channels above its lower bound. Two are equal if and only
    if nothing within the range was removed in between (but for a deleted channel that had a mark there)."""
    values = ", ".join(f"({n}, {r.lower}::bigint, {r.upper}::bigint)" for n, r in enumerate(ranges))
    if not values:
        return []
    found = rows(
        connection,
        # A mark beyond the range says the same about it as one at its end.
        "select r.n::bigint, coalesce(hashtextextended(string_agg("
        "c.id || ':' || least(c.trimmed_id, r.upper), ',' order by c.id), 0)::text, '')"
        f" from (values {values}) r (n, lower, upper) left join gapless.channels c"
        f" on c.trimmed_id > r.lower and {selection.channel_clause()} group by r.n order by r.n",
    )
    return [digest for _, digest in found]


def marks_beyond(connection: Connection, selection: Selection, id_: int) -> str:
    """The digest for a reader that stands at `id_` and goes on without an end."""
    return marks(connection, selection, [Range(id_, max(id_, MAX_ID))])[0]


def lost(connection: Connection, selection: Selection, id_: int) -> NoReturn:
    """Raises `DataLoss` for a reader at `id_`, with the channel of which it lost most messages."""
    found = rows(
        connection,
        "select c.name::text, c.trimmed_id, c.first_seq from gapless.channels c"
        f" where c.trimmed_id > $1 and {selection.channel_clause()} order by c.trimmed_id desc limit 1",
        (id_,),
    )
    where = (
        f"of channel {found[0][0]} everything up to id {found[0][1]} is gone, its first seq is {found[0][2]}"
        if found
        else "the channel it took them from is gone too"
    )
    raise DataLoss(
        f"retention removed messages after id {id_} that were not read: {where}. Set failOnDataLoss to false "
        "to go on with what is left, and raise the channel's retention or read more often"
    )
