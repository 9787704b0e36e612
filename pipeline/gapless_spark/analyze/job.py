"""Runs an analysis: reads the messages once, computes tables and figures, and queries the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.util import inheritable_thread_target

from gapless_spark.analyze import bins, conversation, rates, volume
from gapless_spark.analyze.copying import FEW_MESSAGES, NEEDED, Copy
from gapless_spark.analyze.delivery import Delivery, read_delivery
from gapless_spark.analyze.events import between, to_events
from gapless_spark.analyze.findings import Findings, Read, Row, Senders, Spread, Volume
from gapless_spark.analyze.question import Question
from gapless_spark.analyze.reading import read_messages
from gapless_spark.analyze.stages import Stages
from gapless_spark.analyze.tables import Tables, check_folder, rows
from gapless_spark.columns import spark_schema
from gapless_spark.errors import GaplessSparkError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# More colours could not be told apart in one chart.
COLOURED_CHANNELS = 6
HEATED_CHANNELS = 15

COMPILED = (
    ("spark.sql.codegen.wholeStage", "false", 1_000_000),
    ("spark.sql.codegen.factoryMode", "NO_CODEGEN", FEW_MESSAGES),
    # Hash aggregation and the first rows of a sorted table are compiled despite the settings above.
    ("spark.sql.execution.useHashAggregateExec", "false", FEW_MESSAGES),
    ("spark.sql.execution.topKSortFallbackThreshold", "0", FEW_MESSAGES),
)
"""Settings, each with the number of messages from which on it slows a run down. Below that number, a run
mostly waits for Java to compile code that is used once: see `load.spark.analyze`."""

AT_ONCE = 3
"""The number of stages at once: Spark plans one while it runs another. More would only wait for
processors."""

T = TypeVar("T")


class Begin(Protocol):
    """Begins a stage, and returns the future of its result."""

    def __call__(self, stage: Callable[[], T], /) -> Future[T]: ...


SUBSCRIPTIONS_DDL = (
    "subscription string, paused boolean, lag bigint, in_flight bigint, oldest_seconds double, acked bigint, "
    "redelivered bigint, dead_lettered bigint, dead_letters bigint"
)
ATTEMPTS_DDL = "subscription string, state string, attempts bigint, messages bigint"
DEAD_LETTERS_DDL = "subscription string, reason string, age int, dead_letters bigint, oldest_at timestamp"


def analyze(
    spark: SparkSession,
    question: Question,
    now: datetime,
    tables: str | None = None,
    stages: Stages | None = None,
    copy: Copy | None = None,
) -> Findings:
    """Analyze the messages of `question`, and write the tables as Parquet to the folder `tables`, if given.

    `copy` has the messages of the live log if Spark runs on this machine. Sets the session's time zone.
    Raises `GaplessSparkError` if messages cannot be read. If the database cannot be asked about deliveries,
    the findings say so.
    """
    check_folder(tables, question.source)
    spark.conf.set("spark.sql.session.timeZone", question.timezone)
    few = copy is not None and copy.size().few
    kept = Tables(spark, tables, few)
    try:
        return Job(spark, question, kept, stages or Stages(None), copy).run(now)
    finally:
        kept.close()


class Job:
    """One run. Each method is a stage and makes one part of the findings."""

    def __init__(
        self,
        spark: SparkSession,
        question: Question,
        tables: Tables,
        stages: Stages,
        copy: Copy | None = None,
    ) -> None:
        self.spark = spark
        self.question = question
        self.tables = tables
        self.stages = stages
        self.copy = copy

    def run(self, now: datetime) -> Findings:
        source = "the live log" if self.question.live else self.question.source
        with side_by_side(self.spark) as begin:
            deliveries = begin(self.delivery)
            read, events = self.read()
            if read.totals["messages"] == 0:
                delivery, absent = deliveries.result()
                return Findings(self.question, source, now, read, delivery=delivery, delivery_absent=absent)
            replies = begin(lambda: self.replies(events))
            sessions = begin(lambda: self.sessions(events))
            rates_ = begin(lambda: self.rates(events, read.period))
            volume_ = begin(lambda: self.volume(events, read.period, replies.result()[0]))
            senders = begin(lambda: self.senders(events, read))
            words = begin(lambda: self.words(events))
            raise_first([deliveries, replies, sessions, rates_, volume_, senders, words])
            delivery, absent = deliveries.result()
            lengths, sizes = sessions.result()
            per_unit, peaks = rates_.result()
            return Findings(
                self.question,
                source,
                now,
                read,
                volume=volume_.result(),
                senders=senders.result(),
                session_lengths=lengths,
                session_sizes=sizes,
                replies=replies.result()[1],
                words=words.result(),
                rates=per_unit,
                peaks=peaks,
                delivery=delivery,
                delivery_absent=absent,
            )

    def read(self) -> tuple[Read, DataFrame]:
        with self.stages.stage("Reading") as note:
            question = self.question
            everything = self.tables.keep(to_events(self._messages(), question.fields))
            without_time = 0
            if question.fields.time is not None:
                without_time = everything.where(F.col("at").isNull()).count()
            events = between(everything.where(F.col("at").isNotNull()), question.since, question.until)
            totals = rows(volume.totals(events))[0]
            period = "hour"
            if totals["messages"]:
                period = bins.period_for(totals["first_at"], totals["last_at"])
            note.text = f"{totals['messages']:,} messages of {totals['channels']:,} channels"
            return Read(totals, without_time, period), events

    def _messages(self) -> DataFrame:
        if self.copy is None:
            return read_messages(self.spark, self.question)
        compile_for(self.spark, self.copy.size().messages)
        if self.tables.few:
            return self.tables.held(self.copy.table(), spark_schema(NEEDED))
        return self.spark.read.schema(spark_schema(NEEDED)).parquet(str(self.copy.folder))

    def delivery(self) -> tuple[Delivery | None, str | None]:
        """The statistics of deliveries, or None and the reason."""
        if not self.question.url:
            return None, "no database was given (--url or GAPLESS_DATABASE_URL)"
        with self.stages.stage("Delivery") as note:
            try:
                found = read_delivery(self.question.url, self.question.namespace)
            except GaplessSparkError as error:
                note.text = f"absent: {error}"
                return None, str(error)
            self._write_delivery(found)
            note.text = f"{len(found.subscriptions):,} subscriptions"
            return found, None

    def _write_delivery(self, found: Delivery) -> None:
        for name, part, schema in (
            ("subscriptions", found.subscriptions, SUBSCRIPTIONS_DDL),
            ("delivery_attempts", found.attempts, ATTEMPTS_DDL),
            ("dead_letters", found.dead_letters, DEAD_LETTERS_DDL),
        ):
            self.tables.write_rows(name, part, schema)

    def volume(self, events: DataFrame, period: str, latency: DataFrame) -> Volume:
        with self.stages.stage("Volume") as note:
            hours = self.tables.write("volume_by_hour", volume.volume_by_hour(events))
            channels = self.tables.write(
                "channels", volume.by_channel(events).join(latency, "channel", "left")
            )
            top = rows(channels.orderBy(F.desc("messages"), "channel"), self.question.top)
            names = [row["channel"] for row in top]
            busiest = names[:COLOURED_CHANNELS]
            periods = rows(volume.volume_by_period(hours, period, busiest).orderBy("period"))
            heated = hours.where(F.col("channel").isin(names[:HEATED_CHANNELS]))
            by_hour = rows(volume.hours_of_day(heated))
            week = rows(self.tables.write("busiest_hours", volume.busiest_hours(hours)))
            note.text = f"a figure a {period}"
            return Volume(busiest, periods, by_hour, week, top)

    def senders(self, events: DataFrame, read: Read) -> Senders | None:
        if not read.totals["senders"]:
            return None
        with self.stages.stage("Senders") as note:
            by_hour = self.tables.write("active_senders_by_hour", volume.active_senders(events, "hour"))
            by_day = self.tables.write("active_senders_by_day", volume.active_senders(events, "day"))
            unit = "hour" if read.period == "hour" else "day"
            peak_of = None if read.period in ("hour", "day") else read.period
            active = by_hour if unit == "hour" else by_day
            if peak_of:
                active = volume.peak_by_period(by_day, peak_of)
            senders = self.tables.write("senders", volume.by_sender(events))
            top = rows(senders.orderBy(F.desc("messages"), "sender"), self.question.top)
            note.text = f"{read.totals['senders']:,} senders"
            return Senders(unit, peak_of, rows(active.select("period", "senders").orderBy("period")), top)

    def sessions(self, events: DataFrame) -> tuple[Spread | None, Spread | None]:
        with self.stages.stage("Sessions") as note:
            found = self.tables.write("sessions", conversation.sessions(events, self.question.session_gap_s))
            figures = rows(conversation.session_figures(found))[0]
            note.text = f"{figures['sessions']:,} sessions"
            if not figures["sessions"]:
                return None, None
            lengths, sizes = _spreads(
                figures, found, {"seconds": bins.DURATION_EDGES_S, "messages": bins.COUNT_EDGES}
            )
            return lengths, sizes

    def replies(self, events: DataFrame) -> tuple[DataFrame, Spread | None]:
        """The reply latency of each channel, and of all channels together."""
        with self.stages.stage("Replies") as note:
            within_s = self.question.reply_within_s
            found = self.tables.keep(conversation.replies(events, within_s))
            latency = self.tables.write("reply_latency", conversation.reply_latency(found))
            figures = next(iter(rows(latency.where(F.col("channel").isNull()))), None)
            by_channel = latency.where(F.col("channel").isNotNull()).select(
                "channel", "answered", F.col("seconds_p50").alias("reply_p50_s")
            )
            if not figures or not figures["answered"]:
                return by_channel, None
            note.text = f"{figures['answered']:,} answered"
            return by_channel, _spread(figures, found, "seconds", bins.up_to(bins.DURATION_EDGES_S, within_s))

    def words(self, events: DataFrame) -> Spread | None:
        with self.stages.stage("Words") as note:
            found = self.tables.write("words", conversation.words(events))
            figures = next(iter(rows(found.where(F.col("channel").isNull()))), None)
            if not figures or not figures["messages"]:
                note.text = "no text"
                return None
            note.text = f"{figures['words']:,} words"
            return _spread(figures, events, "words", bins.WORD_EDGES)

    def rates(self, events: DataFrame, period: str) -> tuple[list[Row], list[Row]]:
        """The rates of each unit, and the busiest minute of each period."""
        with self.stages.stage("Rates") as note:
            seconds = self.tables.keep(rates.per_second(events))
            minutes = self.tables.keep(rates.per_unit(seconds, "minute"))
            counts = {"second": seconds, "minute": minutes, "hour": rates.per_unit(minutes, "hour")}
            weights = rows(rates.weights(counts))
            found = [row for unit in counts if (row := rates.rate(weights, unit)) is not None]
            self.tables.write_rows("rates", found, rates.RATES_DDL)
            peaks = rows(rates.peaks(minutes, period).orderBy("period"))
            note.text = f"at most {found[0]['max']:,} in a second"
            return found, peaks


def raise_first(stages: list[Future[Any]]) -> None:
    """Wait for all stages, or until one fails. Raises the error of that stage."""
    done, _ = wait(stages, return_when=FIRST_EXCEPTION)
    for stage in done:
        stage.result()


@contextmanager
def side_by_side(spark: SparkSession) -> Iterator[Begin]:
    """A context with a function that begins a stage on another thread.

    The end of the block waits for all stages. After an exception it does not wait: stages that have not begun
    are cancelled, and the others end when Spark is stopped.
    """
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="stage")

    def begin(stage: Callable[[], T], /) -> Future[T]:
        return pool.submit(inheritable_thread_target(spark)(stage))

    try:
        yield begin
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def compile_for(spark: SparkSession, messages: int) -> None:
    """Turn off the compilation of plans to Java if it does not pay for so many messages. Settings that the
    user gave stay."""
    given = spark.sparkContext.getConf()
    for key, value, worth in COMPILED:
        if messages < worth and not given.contains(key):
            spark.conf.set(key, value)


def _spread(figures: Row, values: DataFrame, column: str, edges: tuple[int, ...]) -> Spread:
    (spread,) = _spreads(figures, values, {column: edges})
    return spread


def _spreads(figures: Row, values: DataFrame, edges: dict[str, tuple[int, ...]]) -> list[Spread]:
    """The histogram of each column, with the same figures."""
    found = rows(conversation.histograms(values, edges))
    return [
        Spread(
            figures,
            own,
            bins.filled({row["bin"]: row["n"] for row in found if row["column"] == column}, len(own)),
        )
        for column, own in edges.items()
    ]
