"""`python -m gapless_spark analyze`: its options, its errors, and one run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
        timeout=110,
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
