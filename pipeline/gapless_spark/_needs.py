"""What must be there before the rest of the package can be imported.

This module is read by every Python that may meet the package, on a driver or on an executor: it uses nothing
that Python 3.8 lacks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

PYTHON = (3, 11)
SPARK = (4, 3)


def check_python(found: Sequence[int] = sys.version_info[:2]) -> None:
    """Raise `ImportError` in an older Python."""
    if tuple(found[:2]) < PYTHON:
        raise ImportError(
            f"gapless-spark needs Python {PYTHON[0]}.{PYTHON[1]} or newer, and this is {found[0]}.{found[1]}"
            f" ({sys.executable}). On executors PYSPARK_PYTHON names the one that is used"
        )


def check_spark() -> None:
    """Raise `Unsupported` where there is no PySpark, or an older one."""
    from gapless_spark.errors import Unsupported

    wanted = f"{SPARK[0]}.{SPARK[1]}"
    advice = f"pip install 'pyspark=={wanted}.*', and run the same version on the cluster"
    try:
        from pyspark import __version__ as there
    except ImportError:
        raise Unsupported(f"gapless-spark needs Spark {wanted}, and there is no PySpark: {advice}") from None
    if tuple(int(part) for part in there.split(".")[:2] if part.isdigit()) < SPARK:
        raise Unsupported(f"gapless-spark needs Spark {wanted}, and this is PySpark {there}: {advice}")
