"""What the package costs to import, and what it offers."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import gapless_spark
import pytest
from gapless_spark._needs import check_python
from gapless_spark.analyze.question import Question
from gapless_spark.export.options import ExportOptions, Shape
from gapless_spark.export.task import Work
from gapless_spark.options import read_options
from gapless_spark.sink import Target
from gapless_spark.sink_rows import SinkColumns
from gapless_spark.snapshots import Snapshot

from tests.support import ROOT

URL = "postgresql://ann:hush@db.example/gapless"


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh Python has after a statement."""
    script = f"import sys\n{statement}\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "pipeline")}
    found = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    return set(found.stdout.split())


def test_importing_it_needs_neither_spark_nor_postgres() -> None:
    assert not loaded_by("import gapless_spark") & {"pyspark", "pyarrow", "adbc_driver_postgresql", "numpy"}


def test_reading_options_connects_nobody() -> None:
    """Spark's planning processes start for every read: what they need not is not loaded."""
    seen = loaded_by("import gapless_spark.options, gapless_spark.database, gapless_spark.ranges")
    assert not seen & {"pyspark", "pyarrow", "adbc_driver_postgresql"}


def test_every_name_it_offers_is_there() -> None:
    for name in gapless_spark.__all__:
        assert getattr(gapless_spark, name) is not None
    assert gapless_spark.GaplessDataSource.name() == "gapless"


@pytest.mark.parametrize(
    "holder",
    [
        Question(url=URL),
        ExportOptions(URL, Path("/x"), Shape()),
        Work(URL, "", "/x", "", Shape(), 1, (), 1),
        read_options({"url": URL}),
        Target(URL, "default", SinkColumns(frozenset(), None), True),
        Snapshot(URL, "1", 1),
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_what_holds_a_url_does_not_show_it(holder: object) -> None:
    """Spark puts what it was given into warnings and logs, and a notebook shows the last value of a cell."""
    assert "hush" not in repr(holder)


def test_an_older_spark_or_python_is_told_what_is_needed(tmp_path: Path) -> None:
    """There is no older Spark to try: a package that says it is one stands for it."""
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").write_text("__version__ = '4.0.1'\n")
    for path, says in (
        (str(tmp_path), "gapless-spark needs Spark 4.3, and this is PySpark 4.0.1: pip install"),
        ("", "gapless-spark needs Spark 4.3, and there is no PySpark: pip install"),
    ):
        script = (
            f"import sys; sys.path[:] = [{path!r}, {str(ROOT / 'pipeline')!r}] "
            "+ [p for p in sys.path if 'site-packages' not in p]\n"
            "import gapless_spark\ntry:\n    gapless_spark.register\nexcept ImportError as error:\n"
            "    print(isinstance(error, gapless_spark.GaplessSparkError), error)"
        )
        done = subprocess.run(
            [sys.executable, "-P", "-I", "-c", script], capture_output=True, text=True, check=True
        )
        assert done.stdout.startswith(f"True {says}")
    with pytest.raises(ImportError, match=r"needs Python 3\.11 or newer, and this is 3\.10 \("):
        check_python((3, 10))


def test_what_says_it_can_be_read_by_an_older_python() -> None:
    for name in ("__init__", "_needs", "_version", "errors"):
        source = (ROOT / "pipeline" / "gapless_spark" / f"{name}.py").read_text()
        ast.parse(source, feature_version=(3, 8))
