"""What became of the messages of a log: `view=latest` of the service, in Spark.

The rules are in docs/protocol.md, under "Fold the log yourself". Here they are sums over groups, because no
task may need all of a channel: only what deletes whole stretches is gathered by channel.
"""

from __future__ import annotations

import heapq
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  (as everybody writes it)

from gapless_spark.columns import BINARY, CHANGE_COLUMNS
from gapless_spark.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NEEDED = ("id", "channel", "key", "data", "sender", *CHANGE_COLUMNS)
_OF_CHANGES = ("through", "annotation", "mode", "remove")
_ONE = ("channel", "target")
_STRETCH = "struct<first: bigint, last: bigint, by: bigint>"


def latest(messages: DataFrame) -> DataFrame:
    """The originals among `messages` as they are after all changes among them, as `view=latest` shows them.

    `messages` are rows of the log of one namespace, each once, with the columns of the option `changes`: a
    batch read, or a table that was exported. The result has their columns but those that only changes have.
    `data` is that of the newest update, and null if it was deleted. After them come `version` (bigint), the
    newest message that changed it, else its own id; `deleted` (boolean); `annotations`, a map from the name
    to a struct of `total`, `distinct`, `unique` (how many; null: none), `flag` (true or null) and `keys` (a
    map from the key to how many), null where there are none; and `replies` (bigint). Changes of originals
    that are not there are left out. Raises `BadOption` for a stream and for missing columns.
    """
    if messages.isStreaming:
        raise BadOption("latest: is for batch reads; in a stream, apply it to what foreachBatch has stored")
    missing = [name for name in _NEEDED if name not in messages.columns]
    if missing:
        raise BadOption(
            f"latest: the columns {', '.join(missing)} are missing; read the log with the option changes true"
        )
    payload = [name for name in ("data", BINARY) if name in messages.columns]
    originals = messages.where("action is null or action = 'reply'").drop(*_OF_CHANGES)
    changes = messages.where("target is not null")
    became = changes.groupBy(*_ONE).agg(
        F.max("id").alias("changed"),
        F.expr(f"max_by(struct({', '.join(payload)}), id) filter (where action = 'update')").alias("newest"),
        F.expr("bool_or(action = 'delete')").alias("gone"),
        F.expr("count_if(action = 'reply')").alias("replied"),
    )
    joined = (
        originals.join(_at_id(became), ["channel", "id"], "left")
        .join(_at_id(_summaries(changes)), ["channel", "id"], "left")
        .join(_hidden(originals, changes), ["channel", "id"], "left")
    )
    deleted = F.expr("coalesce(gone, false) or by is not null")
    now = {
        name: F.when(deleted, F.lit(None))
        .when(F.col("newest").isNotNull(), F.col(f"newest.{name}"))
        .otherwise(F.col(name))
        for name in payload
    }
    return joined.select(
        *[now[name].alias(name) if name in now else F.col(f"`{name}`") for name in originals.columns],
        F.greatest("id", "changed", "by").alias("version"),
        deleted.alias("deleted"),
        "annotations",
        F.expr("coalesce(replied, 0)").alias("replies"),
    )


def _at_id(changed: DataFrame) -> DataFrame:
    return changed.withColumnRenamed("target", "id")


def _summaries(changes: DataFrame) -> DataFrame:
    """channel, target, annotations."""
    made = changes.where("action = 'annotate'").selectExpr(
        *_ONE,
        "id",
        "mode",
        "coalesce(sender, '') as annotator",
        "annotation as name",
        "coalesce(key, '') as key",
        "coalesce(remove, false) as remove",
    )
    annotator = (*_ONE, "mode", "annotator")
    which = (*annotator, "name", "key")
    # A count that is 0 is not lowered: so it is the sum, less the lowest that the sum ever was.
    so_far = Window.partitionBy(*which).orderBy("id").rowsBetween(Window.unboundedPreceding, 0)
    each = (
        made.withColumn("sum", F.sum(F.expr("if(remove, -1, 1)")).over(so_far))
        .groupBy(*which)
        .agg(
            F.expr("max_by(sum, id) - least(0, min(sum))").alias("times"),
            F.expr("max(id) filter (where not remove)").alias("added"),
            F.expr("coalesce(max(id) filter (where remove), 0)").alias("removed"),
        )
        .withColumn("newest", F.max("added").over(Window.partitionBy(*annotator)))
        .where("if(mode = 'total', times > 0, added > removed and (mode <> 'unique' or added = newest))")
        .withColumn("times", F.expr("if(mode = 'total', times, 1)"))
    )
    modes = ("total", "distinct", "unique", "flag")
    by_key = each.groupBy(*_ONE, "name", "key").agg(
        F.sum("times").alias("times"),
        *[F.expr(f"sum(times) filter (where mode = '{mode}')").alias(mode) for mode in modes],
    )
    by_name = by_key.groupBy(*_ONE, "name").agg(
        *[F.sum(mode).alias(mode) for mode in modes],
        F.expr("map_from_entries(collect_list(struct(key, times)) filter (where key <> ''))").alias("keys"),
    )
    said = F.struct(
        *modes[:3],
        F.expr("if(flag > 0, true, null)").alias("flag"),
        F.expr("if(size(keys) > 0, keys, null)").alias("keys"),
    )
    return by_name.groupBy(*_ONE).agg(
        F.map_from_entries(F.collect_list(F.struct("name", said))).alias("annotations")
    )


def _hidden(originals: DataFrame, changes: DataFrame) -> DataFrame:
    """channel, id, by: the originals that a deletion of a stretch hides, and the newest that does."""
    # What comes later is not hidden, whatever the deletion says.
    # A plain function of a row, because functions over Arrow need pandas installed.
    cut = F.udf(disjoint, f"array<{_STRETCH}>", useArrow=False)
    stretches = (
        changes.where("action = 'delete' and through is not null")
        .groupBy("channel")
        .agg(
            F.collect_list(F.expr("struct(target as first, least(through, id - 1) as last, id as by)")).alias(
                "all"
            )
        )
        .select("channel", F.inline(cut("all")))
    )
    ids = originals.select("channel", "id").join(stretches, "channel", "left_semi")
    # Of stretches that do not overlap, only the nearest that begins before an original can hide it.
    nearest = Window.partitionBy("channel").orderBy("at", F.col("found").isNull())
    return (
        stretches.selectExpr("channel", "first as at", "null as id", "struct(last, by) as found")
        .unionByName(ids.selectExpr("channel", "id as at", "id"), allowMissingColumns=True)
        .withColumn("found", F.last("found", ignorenulls=True).over(nearest))
        .where("id is not null and found.last >= id")
        .select("channel", "id", "found.by")
    )


def disjoint(stretches: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """(first, last, by) of stretches that do not overlap: each is by the newest of `stretches` there."""
    edges = sorted({edge for first, last, _ in stretches for edge in (first, last + 1)})
    coming = sorted(stretches, reverse=True)
    there: list[tuple[int, int]] = []
    found = []
    for edge, following in pairwise(edges):
        while coming and coming[-1][0] <= edge:
            _, last, by = coming.pop()
            heapq.heappush(there, (-by, last))
        while there and there[0][1] < edge:
            heapq.heappop(there)
        if there:
            found.append((edge, following - 1, -there[0][0]))
    return found
