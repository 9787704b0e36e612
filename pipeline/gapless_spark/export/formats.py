"""The formats of an export, by name."""

from __future__ import annotations

from pathlib import Path

from gapless_spark.export.ledger import Charter
from gapless_spark.export.publish import Plain, Publisher


def publisher(root: Path, charter: Charter) -> Publisher:
    """The publisher for the export's format. Raises `MissingPackage`."""
    match charter.shape.format:
        case "parquet":
            return Plain(root)
        case "delta":
            from gapless_spark.export.delta import Delta

            return Delta(root, charter)
        case "iceberg":
            from gapless_spark.export.iceberg import Iceberg

            return Iceberg(root, charter)
