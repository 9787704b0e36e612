"""Checks the versions of Python and Spark before the rest of the package is imported.

An older Python, on a driver or an executor, must be able to run this module and report the error. So it uses
only what Python 3.8 has.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

PYTHON = (3, 11)
SPARK = (4, 3)


def check_python(found: Sequence[int] = sys.version_info[:2]) -> None:
    """Raise `ImportError` if Python is too old."""
    if tuple(found[:2]) < PYTHON:
        raise ImportError(
            f"gapless-spark needs Python {PYTHON[0]}.{PYTHON[1]} or newer, and this is {found[0]}.{found[1]}"
            f" ({sys.executable}). On executors PYSPARK_PYTHON names the one that is used"
        )


def check_spark() -> None:
    """Raise `Unsupported` if PySpark is missing or too old."""
    from gapless_spark.errors import Unsupported

    wanted = f"{SPARK[0]}.{SPARK[1]}"
    advice = f"pip install 'pyspark=={wanted}.*', and run the same version on the cluster"
    try:
        from pyspark import __version__ as there
    except ImportError:
        raise Unsupported(f"gapless-spark needs Spark {wanted}, and there is no PySpark: {advice}") from None
    if tuple(int(part) for part in there.split(".")[:2] if part.isdigit()) < SPARK:
        raise Unsupported(f"gapless-spark needs Spark {wanted}, and this is PySpark {there}: {advice}")
