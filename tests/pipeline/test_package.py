"""What the package costs to import, and what it offers."""

from __future__ import annotations

import os
import subprocess
import sys

import gapless_spark

from tests.support import ROOT


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
