"""`python -m gapless_spark analyze`: its options, its errors, and one run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from gapless_spark.analyze.command import _failed
from pyspark.errors import AnalysisException
from rich.console import Console

from tests.patience import PATIENCE_S
from tests.pipeline.conftest import Log
from tests.pipeline.test_analyze_job import SAID, write_export
from tests.support import ROOT

pytestmark = pytest.mark.spark


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "pipeline")])
    environment = {name: value for name, value in os.environ.items() if name != "GAPLESS_DATABASE_URL"}
    return subprocess.run(
        [sys.executable, "-m", "gapless_spark", "analyze", *arguments],
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
        env=environment | {"PYTHONPATH": paths, "COLUMNS": "200", "NO_COLOR": "1"},
        check=False,
    )


def test_help_has_examples() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "--sender-field" in done.stdout
    assert "gapless analyze --from /data/export" in done.stdout


def test_what_is_wrong_is_said_before_spark_starts(tmp_path: Path) -> None:
    done = run("--session-gap", "soon", "--report", str(tmp_path / "r.html"))
    assert done.returncode == 2
    assert "--session-gap is 'soon'" in done.stderr
    done = run("--from", str(tmp_path / "absent"), "--report", str(tmp_path / "r.html"))
    assert done.returncode == 2
    assert "there is no folder" in done.stderr
    assert "Traceback" not in done.stderr
    away = run("--database-url", "postgresql://ann:hush@127.0.0.1:1/gapless")
    assert away.returncode == 3
    assert away.stderr.startswith("gapless: Postgres cannot be reached")
    assert away.stderr.count("\n") == 1
    assert "hush" not in away.stderr


def test_a_namespace_that_is_not_there_is_said_before_spark_starts(plain_log: Log, tmp_path: Path) -> None:
    report = tmp_path / "r.html"
    done = run("--database-url", plain_log.url, "--namespace", "nobody", "--report", str(report))
    assert done.returncode == 2
    assert done.stderr == "gapless: namespace: there is no namespace 'nobody'\n"
    assert not report.exists()


def test_where_nothing_can_be_written_is_said_before_spark_starts(tmp_path: Path) -> None:
    source = write_export(tmp_path / "export", SAID)
    (tmp_path / "file").write_text("not a folder")
    for option in ("--report", "--tables"):
        done = run("--from", source, option, str(tmp_path / "file" / "within"))
        assert done.returncode == 2
        assert done.stderr.startswith(f"gapless: {option}: ")
        assert "cannot be written" in done.stderr
        assert "Spark" not in done.stderr
    away = run("--from", source, "--report", "s3://bucket/report.html")
    assert (away.returncode, "gapless: --report: s3: is not served" in away.stderr) == (2, True)


def test_what_spark_carries_of_ours_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed to plan: Traceback (most recent call last):\n"
        '  File "database.py", line 147, in _open\n    raise failure(error) from None\n'
        "gapless_spark.errors.DatabaseUnreachable: Postgres cannot be reached: it is away\n SQLSTATE: 38000"
    )
    assert _failed(Console(stderr=True), AnalysisException(text)) == 3
    assert capsys.readouterr().err == "gapless: Postgres cannot be reached: it is away\n"
    assert _failed(Console(stderr=True), AnalysisException("Java went away\n\tat org.apache.Spark.x")) == 1
    told = capsys.readouterr().err
    assert told.startswith("gapless: Spark failed: Java went away")
    assert told.count("\n") == 1


@pytest.mark.drill
def test_a_run_tells_its_stages_and_writes_the_page(tmp_path: Path) -> None:
    source = write_export(tmp_path / "export", SAID)
    report = tmp_path / "out" / "report.html"
    # Four messages are not worth compiling for.
    settings = (
        "spark.sql.shuffle.partitions=1",
        "spark.sql.codegen.wholeStage=false",
        "spark.driver.extraJavaOptions=-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    )
    small = ("--master", "local[1]", *(text for setting in settings for text in ("--conf", setting)))
    done = run("--from", source, "--sender-field", "user", "--report", str(report), *small)
    assert done.returncode == 0, done.stderr
    for stage in ("Spark", "Reading", "Volume", "Sessions", "Replies", "Report"):
        assert stage in done.stderr
    assert "4 messages of 3 channels" in done.stderr
    assert report.read_text().startswith("<!doctype html>")
