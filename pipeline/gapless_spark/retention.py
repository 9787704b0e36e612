"""Finds out whether retention removed messages that a reader still needs.

A channel's mark is the id of the newest message that retention removed from it. A mark beyond a reader's
offset means that messages are lost, unless the mark existed when the reader began at the oldest message kept.
So a reader keeps a digest of the marks beyond its offset that it knows. That is one number for any number of
channels, and empty for a reader that is ahead of retention.
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
    """For each range, a digest of the selected channels' marks above its lower bound. Two digests of a range
    are equal if and only if retention removed nothing from it in between (except in a channel that was
    deleted)."""
    values = ", ".join(f"({n}, {r.lower}::bigint, {r.upper}::bigint)" for n, r in enumerate(ranges))
    if not values:
        return []
    found = rows(
        connection,
        # For the range, a mark beyond its end means the same as one at its end.
        "select r.n::bigint, coalesce(hashtextextended(string_agg("
        "c.id || ':' || least(c.trimmed_id, r.upper), ',' order by c.id), 0)::text, '')"
        f" from (values {values}) r (n, lower, upper) left join gapless.channels c"
        f" on c.trimmed_id > r.lower and {selection.channel_clause()} group by r.n order by r.n",
    )
    return [digest for _, digest in found]


def marks_beyond(connection: Connection, selection: Selection, id_: int) -> str:
    """The digest for a reader at `id_` that reads on without an end."""
    return marks(connection, selection, [Range(id_, max(id_, MAX_ID))])[0]


def lost(connection: Connection, selection: Selection, id_: int) -> NoReturn:
    """Raises `DataLoss` for a reader at `id_`. The text names the channel with the newest removed message."""
    found = rows(
        connection,
        "select c.name::text, c.trimmed_id, c.first_seq from gapless.channels c"
        f" where c.trimmed_id > $1 and {selection.channel_clause()} order by c.trimmed_id desc limit 1",
        (id_,),
    )
    where = (
        f"channel {found[0][0]} has lost everything up to id {found[0][1]} and begins with seq {found[0][2]}"
        if found
        else "their channel was deleted too"
    )
    raise DataLoss(
        f"retention removed messages after id {id_} that were not read: {where}. Set failOnDataLoss to false "
        "to read the messages that are left, and raise the channel's retention or read more often"
    )
