"""Spark for Gapless: the data source and sink `gapless`, and jobs that export and analyse the log.

    import gapless_spark

    gapless_spark.register(spark)
    df = spark.read.format("gapless").option("url", "postgresql://…").option("channels", "chat.>").load()

Large packages are imported when they are used: `import gapless_spark` needs neither Spark nor Postgres.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gapless_spark._needs import check_python, check_spark
from gapless_spark._version import __version__

check_python()

if TYPE_CHECKING:
    from gapless_spark.errors import GaplessSparkError as GaplessSparkError
    from gapless_spark.folding import latest as latest
    from gapless_spark.payload import parsed as parsed
    from gapless_spark.snapshots import Snapshot as Snapshot
    from gapless_spark.snapshots import snapshot as snapshot
    from gapless_spark.source import GaplessDataSource as GaplessDataSource
    from gapless_spark.source import register as register

__all__ = [
    "GaplessDataSource",
    "GaplessSparkError",
    "Snapshot",
    "__version__",
    "latest",
    "parsed",
    "register",
    "snapshot",
]

_HOMES = {
    "GaplessDataSource": "gapless_spark.source",
    "GaplessSparkError": "gapless_spark.errors",
    "Snapshot": "gapless_spark.snapshots",
    "latest": "gapless_spark.folding",
    "parsed": "gapless_spark.payload",
    "register": "gapless_spark.source",
    "snapshot": "gapless_spark.snapshots",
}
_OF_SPARK = frozenset({"gapless_spark.folding", "gapless_spark.payload", "gapless_spark.source"})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if _HOMES[name] in _OF_SPARK:
        check_spark()
    return getattr(import_module(_HOMES[name]), name)
