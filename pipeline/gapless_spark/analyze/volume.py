"""Volumes of messages and active senders, over time and by channel. Hours and days are in the session's time
zone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def totals(events: DataFrame) -> DataFrame:
    """One row: messages, channels, senders, bytes, first_at, last_at, without_sender, without_text."""
    return events.agg(
        F.count("*").alias("messages"),
        F.count_distinct("channel").alias("channels"),
        F.count_distinct("sender").alias("senders"),
        F.coalesce(F.sum("bytes"), F.lit(0)).alias("bytes"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
        F.count_if(F.col("sender").isNull()).alias("without_sender"),
        F.count_if(F.col("words").isNull()).alias("without_text"),
    )


def volume_by_hour(events: DataFrame) -> DataFrame:
    """channel, hour timestamp, messages, bytes: one row for each channel and hour with a message."""
    return events.groupBy("channel", F.date_trunc("hour", "at").alias("hour")).agg(
        F.count("*").alias("messages"), F.sum("bytes").alias("bytes")
    )


def volume_by_period(volume: DataFrame, unit: str, busiest: list[str]) -> DataFrame:
    """period timestamp, channel (null: all channels not in `busiest`), messages; from `volume_by_hour`.

    `unit` is hour, day, week (from Monday), month or year.
    """
    named = F.when(F.col("channel").isin(busiest), F.col("channel"))
    return volume.groupBy(F.date_trunc(unit, "hour").alias("period"), named.alias("channel")).agg(
        F.sum("messages").alias("messages")
    )


def hours_of_day(volume: DataFrame) -> DataFrame:
    """channel, hour 0 to 23, messages; from `volume_by_hour`."""
    return volume.groupBy("channel", F.hour("hour").alias("hour")).agg(F.sum("messages").alias("messages"))


def busiest_hours(volume: DataFrame) -> DataFrame:
    """weekday (0 Monday to 6 Sunday), hour 0 to 23, messages; from `volume_by_hour`."""
    return volume.groupBy(F.weekday("hour").alias("weekday"), F.hour("hour").alias("hour")).agg(
        F.sum("messages").alias("messages")
    )


def active_senders(events: DataFrame, unit: str) -> DataFrame:
    """period timestamp, senders (distinct), messages (of known senders); `unit` is hour or day."""
    return (
        events.where(F.col("sender").isNotNull())
        .groupBy(F.date_trunc(unit, "at").alias("period"))
        .agg(F.count_distinct("sender").alias("senders"), F.count("*").alias("messages"))
    )


def peak_by_period(active: DataFrame, unit: str) -> DataFrame:
    """period timestamp, senders: the highest count of `active_senders` in each period of the longer
    `unit`."""
    return active.groupBy(F.date_trunc(unit, "period").alias("period")).agg(F.max("senders").alias("senders"))


def by_channel(events: DataFrame) -> DataFrame:
    """channel, messages, senders, bytes, words_per_message, first_at, last_at."""
    return events.groupBy("channel").agg(
        F.count("*").alias("messages"),
        F.count_distinct("sender").alias("senders"),
        F.sum("bytes").alias("bytes"),
        F.avg("words").alias("words_per_message"),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
    )


def by_sender(events: DataFrame) -> DataFrame:
    """sender, messages, channels, words_per_message, first_at, last_at; of known senders."""
    return (
        events.where(F.col("sender").isNotNull())
        .groupBy("sender")
        .agg(
            F.count("*").alias("messages"),
            F.count_distinct("channel").alias("channels"),
            F.avg("words").alias("words_per_message"),
            F.min("at").alias("first_at"),
            F.max("at").alias("last_at"),
        )
    )
