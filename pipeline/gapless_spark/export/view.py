"""The table `latest` beside an export: its messages as they are after all changes, made anew from its files.

    export.json     whose table it is
    at-ID/          the Parquet files of the table up to that id; complete, and they never change
    current         a link to the newest of them; one rename moves it on
    _new/           what is being written

A kill at any moment leaves `current` as it was. The next run makes the table anew if it is behind the export.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gapless_spark.errors import BadOption
from gapless_spark.export.errors import FolderTaken, OtherExport, SparkFailed, from_spark
from gapless_spark.export.folder import make_root, sync_file, sync_folder, write_json
from gapless_spark.export.ledger import Charter

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

CURRENT = "current"
_CHARTER = "export.json"
_NEW = "_new"


class View:
    """The table in the folder `root`, of the export that `charter` describes. Raises `FolderTaken` and
    `OtherExport` if the folder holds something else, and `OSError`."""

    def __init__(self, root: Path, charter: Charter) -> None:
        if not charter.shape.changes:
            raise OtherExport(
                "--latest: this export was begun without the columns of changes; export to a new folder"
            )
        make_root(root)
        path = root / _CHARTER
        whose = path.read_text() if path.is_file() else None
        if whose is None and any(root.iterdir()):
            raise FolderTaken(f"--latest: {root} holds something else: give a new or empty folder")
        if whose is not None and charter.export_id not in whose:
            raise OtherExport(f"--latest: {root} holds the table of another export: give a new folder")
        if whose is None:
            write_json(path, {"export_id": charter.export_id})
        self._root = root
        self._columns = charter.shape.columns

    def make(self, upto: int, files: list[str], spark: Callable[[], SparkSession]) -> bool:
        """Make the table of these files, which have the messages up to an id, and show it. False: it was
        shown already, and Spark is not started. Raises `SparkFailed` and `OSError`."""
        name = f"at-{upto}"
        current = self._root / CURRENT
        before = current.readlink().name if current.is_symlink() else None
        if before == name:
            self._sweep({name})
            return False
        # What is there without being current may be of a run that was killed, and of other files.
        self._sweep({before})
        self._write(self._root / _NEW, files, spark())
        os.replace(self._root / _NEW, self._root / name)
        link = self._root / f".{CURRENT}"
        link.symlink_to(name)
        sync_folder(self._root)
        os.replace(link, current)
        sync_folder(self._root)
        # Who has begun to read the table before can end.
        self._sweep({before, name})
        return True

    def _write(self, folder: Path, files: list[str], spark: SparkSession) -> None:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped,unused-ignore]
        from pyspark.errors import PySparkException

        from gapless_spark.columns import spark_schema
        from gapless_spark.folding import latest

        schema = spark_schema(self._columns)
        try:
            if files:
                # Days are not taken from the names of folders.
                reader = spark.read.schema(schema).option("recursiveFileLookup", "true")
                messages = reader.parquet(*[f"file://{file}" for file in files])
            else:
                messages = spark.createDataFrame([], schema)
            latest(messages).write.option("compression", "zstd").parquet(f"file://{folder}")
        except PySparkException as error:
            raise from_spark(str(error)) from error
        except Py4JError as error:
            raise SparkFailed("Spark's Java process ended. Run the same command again to continue") from error
        for file in folder.iterdir():
            sync_file(file)
        sync_folder(folder)

    def _sweep(self, kept: set[str | None]) -> None:
        for path in self._root.iterdir():
            if path.name == f".{CURRENT}":
                path.unlink()
            elif path.name == _NEW or (path.name.startswith("at-") and path.name not in kept):
                shutil.rmtree(path)


def check_place(root: Path, export: Path) -> None:
    """Raises `BadOption` if the table's folder lies in the export's, whose readers would take its files, or
    the other way round, and for names that Spark cannot read."""
    if root == export or root in export.parents or export in root.parents:
        raise BadOption(f"--latest: {root} and {export} must not lie in one another")
    # Spark takes names with these characters for patterns.
    if unfit := set("*?[]{}\\") & set(f"{root}{export}"):
        raise BadOption(
            f"--latest: {' '.join(sorted(unfit))} cannot be in the name of this folder or of --to"
        )
