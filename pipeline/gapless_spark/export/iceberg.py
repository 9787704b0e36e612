"""The export as an Iceberg table, committed without Java by the `pyiceberg` package.

The root holds the table's files and `catalog.db`, a catalog in SQLite with one table, `gapless.messages`.
Each batch is one snapshot. Its summary has the export's id and the batch's number, from which a batch that
was committed before is recognised.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from gapless_spark.export.errors import MissingPackage
from gapless_spark.export.folder import sync_folder, write_text
from gapless_spark.export.ledger import Charter, Entry, Published
from gapless_spark.export.publish import Table, put_in_place

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table import Transaction

NAME = ("gapless", "messages")
_PROPERTIES = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
}
_EXPORT, _BATCH, _UPTO = "gapless.export", "gapless.batch", "gapless.upto"


@contextmanager
def _catalog_errors_as_os_errors() -> Iterator[None]:
    """Turn an error of the catalog's SQLite into an `OSError`, because `catalog.db` is a file of the
    export."""
    try:
        yield
    except Exception as error:
        reason = getattr(error, "orig", None)
        if not isinstance(reason, sqlite3.Error):
            raise
        raise OSError(f"{reason} (catalog.db)") from error


class Iceberg(Table):
    """The table, partitioned by the day of `created_at` (`date`) and perhaps by `channel`."""

    def __init__(self, root: Path, charter: Charter) -> None:
        # Pyiceberg warns for each file and column without statistics; payloads have none on purpose.
        logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
        self._root = root
        self._charter = charter
        with _catalog_errors_as_os_errors():
            self._table = self._opened()
        sync_folder(root)

    def apply(self, entry: Entry) -> None:
        """Put the files in place and commit them, unless that was done before."""
        put_in_place(self._root, entry.files)
        with _catalog_errors_as_os_errors():
            self._commit(entry)

    def files(self) -> list[str]:
        with _catalog_errors_as_os_errors():
            self._table.refresh()
            found = [task.file.file_path for task in self._table.scan().plan_files()]
        return sorted(path.removeprefix("file://") for path in found)

    def _commit(self, entry: Entry) -> None:
        self._table.refresh()
        if self._committed() < entry.number:
            self._add(entry)
        self._hint()
        sync_folder(self._root / "metadata")

    def _add(self, entry: Entry) -> None:
        properties = {
            _EXPORT: self._charter.export_id,
            _BATCH: str(entry.number),
            _UPTO: str(entry.upper),
        }
        with self._table.transaction() as transaction:
            if any(file.replaces for file in entry.files):
                self._replace(transaction, entry, properties)
            else:
                transaction.add_files(
                    [self._location(file.path) for file in entry.files],
                    snapshot_properties=properties,
                    # Names are unique, and this check would read the names of all files.
                    check_duplicate_files=False,
                )

    def _committed(self) -> int:
        """The number of the newest batch of this export in the table's snapshots; 0 if there is none."""
        for snapshot in reversed(self._table.snapshots()):
            summary = snapshot.summary
            if summary is not None and summary.get(_EXPORT) == self._charter.export_id:
                return int(summary.get(_BATCH) or 0)
        return 0

    def _replace(self, transaction: Transaction, entry: Entry, properties: dict[str, str]) -> None:
        """Commit one snapshot in which the files of an entry replace those whose rows they contain."""
        from pyiceberg.table import _parquet_files_to_data_files

        added = _parquet_files_to_data_files(
            transaction.table_metadata,
            [self._location(file.path) for file in entry.files],
            self._table.io,
        )
        with transaction.update_snapshot(snapshot_properties=properties).overwrite() as snapshot:
            for data_file in added:
                snapshot.append_data_file(data_file)
            for file in entry.files:
                for data_file in self._data_files(file):
                    snapshot.delete_data_file(data_file)

    def _data_files(self, file: Published) -> list[DataFile]:
        """The table's records of the files that `file` replaces."""
        day = date.fromisoformat(file.date)
        midnight = "T00:00:00+00:00"
        within = f"created_at >= '{day}{midnight}' and created_at < '{day + timedelta(days=1)}{midnight}'"
        wanted = {self._location(path) for path in file.replaces}
        return [
            task.file
            for task in self._table.scan(row_filter=within).plan_files()
            if task.file.file_path in wanted
        ]

    def _location(self, path: str) -> str:
        return f"file://{self._root}/{path}"

    def _opened(self) -> IcebergTable:
        """The table. The first run makes it in one transaction of the catalog."""
        try:
            from pyiceberg.catalog.sql import SqlCatalog
        except ImportError:
            raise MissingPackage(
                "--format iceberg needs the package pyiceberg: pip install gapless-spark[iceberg]"
            ) from None
        from gapless_spark.export.durable import NAME as DURABLE

        catalog = SqlCatalog(
            "gapless",
            uri=f"sqlite:///{self._root}/catalog.db",
            warehouse=f"file://{self._root}",
            **{"py-io-impl": DURABLE},
        )
        catalog.create_namespace_if_not_exists(NAME[0])
        if catalog.table_exists(NAME):
            return catalog.load_table(NAME)
        return self._made(catalog)

    def _made(self, catalog: SqlCatalog) -> IcebergTable:
        from pyiceberg.transforms import DayTransform, IdentityTransform

        from gapless_spark.columns import arrow_schema

        with (
            catalog.create_table_transaction(
                NAME,
                arrow_schema(self._charter.shape.columns),
                location=f"file://{self._root}",
                properties=_PROPERTIES,
            ) as transaction,
            transaction.update_spec() as spec,
        ):
            spec.add_field("created_at", DayTransform(), "date")
            if self._charter.shape.by_channel:
                spec.add_field("channel", IdentityTransform(), "channel_name")
        return catalog.load_table(NAME)

    def _hint(self) -> None:
        """Write the name of the newest metadata for readers that use the folder without the catalog."""
        name = Path(self._table.metadata_location).name.removesuffix(".metadata.json")
        write_text(self._root / "metadata" / "version-hint.text", name)
