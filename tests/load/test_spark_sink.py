"""The short form of the sink's verdict, for real: tasks that fail, and a query that is killed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from load.children import CHECKOUT


@pytest.mark.drill
@pytest.mark.spark
def test_each_row_is_one_message_whatever_fails() -> None:
    path = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "pipeline")])
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "load.spark.sink", "--short"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "1 kills" in ran.stdout
    assert "5,000 messages\nclean: 0 lost, 0 doubled, seq dense" in ran.stdout
