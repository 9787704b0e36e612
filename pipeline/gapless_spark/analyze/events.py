"""Turns messages into events: the few columns from which all figures are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name
from pyspark.sql.types import StringType

from gapless_spark.analyze.question import Fields, json_path

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import Column, DataFrame

# Runs of characters other than white space, in every script.
WORD = r"(?U)\S+"
# Texts that may be numbers; a time hardly has this form. Blanks may surround the number.
NUMBER = r"^[-+0-9.eE\s]+$"
# A number of seconds since 1970 stays below this for 3,000 years; a number of milliseconds passed it in 1973.
FIRST_MILLISECONDS = 100_000_000_000


def to_events(messages: DataFrame, fields: Fields) -> DataFrame:
    """id, channel, seq, type, sender, at timestamp, words int, bytes int.

    `messages` has the columns of the source. `sender`, `at` and `words` are null if a message has none.
    `bytes` is the length of `data` as UTF-8 text.
    """
    data = _as_text(messages)
    sender = F.col("sender") if fields.sender is None else _member(data, fields.sender, "--sender-field")
    text = F.lit(None).cast("string") if fields.text is None else _member(data, fields.text, "--text-field")
    at = F.col("created_at") if fields.time is None else _moment(_member(data, fields.time, "--time-field"))
    return messages.select(
        "id",
        "channel",
        "seq",
        "type",
        F.nullif(sender, F.lit("")).alias("sender"),
        at.alias("at"),
        F.regexp_count(text, F.lit(WORD)).alias("words"),
        F.coalesce(F.octet_length(data), F.lit(0)).alias("bytes"),
    )


def between(events: DataFrame, since: datetime | None, until: datetime | None) -> DataFrame:
    """Events with since <= at < until. A bound removes events without a time."""
    if since is not None:
        events = events.where(F.col("at") >= F.lit(since))
    if until is not None:
        events = events.where(F.col("at") < F.lit(until))
    return events


def _as_text(messages: DataFrame) -> Column:
    """`data` as JSON text, also for an export that has it parsed."""
    if isinstance(messages.schema["data"].dataType, StringType):
        return F.col("data")
    return F.to_json(F.col("data"))


def _member(data: Column, members: str, option: str) -> Column:
    return F.get_json_object(data, json_path(members, option))


def _moment(text: Column) -> Column:
    """A timestamp from ISO 8601, or from seconds or milliseconds since 1970; else null."""
    # Only likely numbers are cast: for any other text Java makes an exception, which is very slow.
    number = F.when(text.rlike(NUMBER), text).try_cast("decimal(20, 6)")
    seconds = F.when(F.abs(number) < FIRST_MILLISECONDS, number).otherwise(number / 1000)
    counted = F.timestamp_micros((seconds * 1_000_000).try_cast("bigint"))
    return F.when(number.isNotNull(), counted).otherwise(F.try_to_timestamp(text))
