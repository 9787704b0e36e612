"""Reads the messages from a folder that the export wrote, or from the live log."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from gapless_spark.analyze.copying import NEEDED, source_options
from gapless_spark.analyze.question import LIVE, Question
from gapless_spark.database import close, connect
from gapless_spark.errors import BadOption
from gapless_spark.places import scheme_of
from gapless_spark.selection import Selection, parse_patterns, to_regex

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_messages(spark: SparkSession, question: Question) -> DataFrame:
    """The messages of a question, with the columns of the source. Raises `BadOption` for a folder that is not
    an export, and the errors of the source."""
    found = _live(spark, question) if question.live else _export(spark, question)
    return found.select(*NEEDED)


def check_source(question: Question) -> None:
    """Check the source without Spark. Raises `BadOption`, and the errors of `database.connect` if the live
    log cannot be read."""
    if question.channels:
        parse_patterns(question.channels)
    if question.source != LIVE:
        data_files(question.source)
        return
    if not question.url:
        raise BadOption(
            "url: no database is given. Give --url or GAPLESS_DATABASE_URL, or --from with a folder that "
            "`gapless export` wrote"
        )
    connection = connect(question.url)
    try:
        Selection(question.namespace).check_namespace(connection)
    finally:
        close(connection)


def _live(spark: SparkSession, question: Question) -> DataFrame:
    import gapless_spark

    gapless_spark.register(spark)
    return spark.read.format("gapless").options(**source_options(question)).load()


def _export(spark: SparkSession, question: Question) -> DataFrame:
    from gapless_spark.columns import spark_schema

    folder = question.source
    files = data_files(folder)
    if not files:
        return spark.createDataFrame([], spark_schema())
    found = _parquet(spark, folder, files)
    if question.channels:
        patterns = "|".join(to_regex(pattern) for pattern in parse_patterns(question.channels))
        found = found.where(F.col("channel").rlike(patterns))
    if "date" in found.columns and question.fields.time is None:
        # This skips the folders of other days. The days are UTC; `between` removes messages at the edges.
        if question.since:
            found = found.where(F.col("date") >= question.since.astimezone(UTC).date().isoformat())
        if question.until:
            found = found.where(F.col("date") <= question.until.astimezone(UTC).date().isoformat())
    return found


def _parquet(spark: SparkSession, folder: str, files: list[str]) -> DataFrame:
    reader = spark.read.option("basePath", folder)
    try:
        inferred = reader.parquet(*files).schema
    except AnalysisException as error:
        reason = str(error).splitlines()[0]
        raise BadOption(f"--from: {folder} cannot be read as an export: {reason}") from None
    lacking = set(NEEDED) - set(inferred.names)
    if lacking:
        raise BadOption(
            f"--from: {folder} is not an export of messages: it has no column {', '.join(sorted(lacking))}"
        )
    # Spark would infer a number for a channel named 7 if it is the name of a folder.
    text = {"channel", "date"}
    fields = [StructField(f.name, StringType()) if f.name in text else f for f in inferred]
    return reader.schema(StructType(fields)).parquet(*files)


def data_files(folder: str) -> list[str]:
    """The paths of an export for Spark: the folder itself, or the files that its Delta or Iceberg table
    names. Empty if nothing was exported yet. Raises `BadOption` if there is no such folder."""
    if scheme_of(folder):
        return [folder]
    path = Path(folder)
    if not path.is_dir():
        raise BadOption(
            f"--from: there is no folder {folder}. Give a folder of `gapless export --to`, or live"
        )
    if (path / "_delta_log").is_dir():
        return _delta_files(path)
    metadata = sorted(path.glob("**/metadata/*.metadata.json"), key=lambda found: found.stat().st_mtime_ns)
    if metadata:
        return _iceberg_files(metadata[-1])
    # Spark does not read names with these prefixes, such as logs and files that are still written.
    parts = (found.relative_to(path).parts for found in path.glob("**/*.parquet"))
    return [folder] if any(not part[0].startswith(("_", ".")) for part in parts) else []


def _delta_files(path: Path) -> list[str]:
    try:
        from deltalake import DeltaTable
    except ImportError:
        raise BadOption("--from: this is a Delta table; install gapless-spark[delta] to read it") from None
    # Not `file_uris`: it percent-encodes the folder's own path, but not the names below it.
    actions = DeltaTable(path).get_add_actions(flatten=True)
    return sorted(str(path / unquote(name)) for name in actions.column("path").to_pylist())


def _iceberg_files(metadata: Path) -> list[str]:
    try:
        from pyiceberg.table import StaticTable
    except ImportError:
        raise BadOption(
            "--from: this is an Iceberg table; install gapless-spark[iceberg] to read it"
        ) from None
    table = StaticTable.from_metadata(str(metadata))
    return sorted(task.file.file_path for task in table.scan().plan_files())
