"""The export as a Delta table, committed without Java by the `deltalake` package.

Each batch is one transaction of the table. The export's id and the batch's number are its application
transaction, from which a batch that was committed before is recognised.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gapless_spark.export.errors import MissingPackage
from gapless_spark.export.folder import sync_file, sync_folder
from gapless_spark.export.ledger import Charter, Entry, Published
from gapless_spark.export.publish import Table, put_in_place

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

CHECKPOINT_EVERY = 100
VACUUM_EVERY = 1_000
RETENTION_HOURS = 168


class Delta(Table):
    """The table in the root of the export, partitioned by `date` and perhaps `channel`."""

    def __init__(self, root: Path, charter: Charter) -> None:
        try:
            import deltalake
        except ImportError:
            raise MissingPackage(
                "--format delta needs the package deltalake: pip install gapless-spark[delta]"
            ) from None
        self._root = root
        self._charter = charter
        self._partition_by = ["date", "channel"] if charter.shape.by_channel else ["date"]
        # The table is made even if there are no messages, so that readers find it.
        self._table: DeltaTable = deltalake.DeltaTable.create(
            str(root),
            deltalake.Schema.from_arrow(self._schema()),
            mode="ignore",
            partition_by=self._partition_by,
            name="gapless",
            description="Messages of a Gapless log",
        )
        self._sync()
        sync_folder(root)

    def apply(self, entry: Entry) -> None:
        """Put the files in place and commit them, unless that was done before."""
        import deltalake

        put_in_place(self._root, entry.files)
        self._table.update_incremental()
        done = self._table.transaction_version(self._charter.export_id)
        if done is not None and done >= entry.number:
            self._sync()
            return
        self._table.create_write_transaction(
            self._actions(entry),
            "append",
            deltalake.Schema.from_arrow(self._schema()),
            partition_by=self._partition_by,
            commit_properties=deltalake.CommitProperties(
                custom_metadata={"gapless.batch": str(entry.number), "gapless.upto": str(entry.upper)},
                app_transactions=[deltalake.Transaction(self._charter.export_id, entry.number)],
            ),
        )
        self._table.update_incremental()
        self._sync()
        if entry.number % CHECKPOINT_EVERY == 0:
            self._table.create_checkpoint()
        if entry.number % VACUUM_EVERY == 0:
            self._table.vacuum(RETENTION_HOURS, dry_run=False)

    def files(self) -> list[str]:
        import pyarrow as pa

        self._table.update_incremental()
        paths = pa.table(self._table.get_add_actions()).column("path").to_pylist()
        return [str(self._root / path) for path in sorted(paths)]

    def _sync(self) -> None:
        """Sync the newest commit to disk, which the package does not do."""
        log = self._root / "_delta_log"
        sync_file(log / f"{self._table.version():020d}.json")
        sync_folder(log)

    def _schema(self) -> pa.Schema:
        import pyarrow as pa

        from gapless_spark.columns import arrow_schema

        return arrow_schema(self._charter.shape.columns).append(pa.field("date", pa.date32()))

    def _actions(self, entry: Entry) -> list[AddAction | RemoveAction]:
        from deltalake.transaction import AddAction, RemoveAction

        now_ms = int(time.time() * 1000)
        adds_rows = entry.upper > entry.lower
        actions: list[AddAction | RemoveAction] = []
        for file in entry.files:
            partition = self._partition(file)
            statistics = {
                "numRecords": file.rows,
                "minValues": {"id": file.first_id},
                "maxValues": {"id": file.last_id},
                "nullCount": {"id": 0},
            }
            actions.append(
                AddAction(file.path, file.bytes, partition, now_ms, adds_rows, json.dumps(statistics))
            )
            actions += [
                RemoveAction(old, adds_rows, now_ms, partition_values=partition) for old in file.replaces
            ]
        return actions

    def _partition(self, file: Published) -> dict[str, str | None]:
        partition: dict[str, str | None] = {"date": file.date}
        return partition if file.channel is None else partition | {"channel": file.channel}
