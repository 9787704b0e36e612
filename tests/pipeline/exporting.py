"""An export as its readers see it, and the log it is of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from gapless_spark.export.options import Format

from tests.pipeline.conftest import Log


def stored(log: Log, where: str = "true") -> list[tuple[Any, ...]]:
    """The messages of the log."""
    return log.owner.fetch(
        "select m.id, c.name::text, m.seq, m.data::text, m.binary from gapless.messages m"
        f" join gapless.channels c on c.id = m.channel_id where {where} order by m.id"
    )


def read(root: Path, format_: Format) -> list[tuple[Any, ...]]:
    """What a reader of the format sees."""
    columns = ["id", "channel", "seq", "data", "binary"]
    match format_:
        case "parquet":
            files = f"read_parquet('{root}/**/*.parquet', hive_partitioning=true)"
            relation = duckdb.sql(f'select id, channel, seq, data, "binary" from {files}')
            assert relation is not None
            found = relation.to_arrow_table()
        case "delta":
            import deltalake

            made = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(root)))
            found = pa.table(made.execute(f"select {', '.join(columns)} from t").read_all())
        case "iceberg":
            from pyiceberg.catalog.sql import SqlCatalog

            catalog = SqlCatalog("gapless", uri=f"sqlite:///{root}/catalog.db")
            found = catalog.load_table("gapless.messages").scan(selected_fields=tuple(columns)).to_arrow()
    return sorted(tuple(row[name] for name in columns) for row in found.to_pylist())
