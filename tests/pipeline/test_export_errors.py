"""What is told of an error: the line that says why."""

from __future__ import annotations

import pytest
from gapless_spark.export.errors import from_spark

PYTHON = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times:
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "task.py", line 77, in _one
ModuleNotFoundError: No module named 'pyarrow'

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handle(PythonRunner.scala:581)
"""
JAVA = """Job aborted due to stage failure: Lost task 0.0 in stage 1.0 (TID 1) (localhost executor driver):
java.lang.UnsupportedOperationException: sun.misc.Unsafe is not available
\tat io.netty.util.internal.PlatformDependent.directBuffer(PlatformDependent.java:534)
Caused by: java.lang.IllegalStateException: something else
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (PYTHON, "ModuleNotFoundError: No module named 'pyarrow'. Executors need pyarrow"),
        (JAVA, "java.lang.UnsupportedOperationException: sun.misc.Unsafe is not available"),
        ("The cluster is gone\nand so on", "The cluster is gone"),
        ("", "no reason given"),
    ],
)
def test_the_reason_is_told(text: str, says: str) -> None:
    told = str(from_spark(text))
    assert told.startswith(f"Spark could not run the batch: {says}")
    assert "\n" not in told
