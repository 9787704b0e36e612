"""Writes the files of an Iceberg table durably.

The package `pyiceberg` does not sync its files, but its catalog in SQLite is synced. So after a loss of power
the catalog could name metadata that is not on disk, and the table could not be read.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from gapless_spark.export.folder import make_root, sync_folder

if TYPE_CHECKING:
    from pyiceberg.io import OutputStream

NAME = f"{__name__}.DurableFileIO"
"""The value for the catalog's property `py-io-impl`."""


class _Durable(io.BufferedWriter):
    """A new file. `close` syncs it and its folder to disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(io.FileIO(path, "wb"))

    def close(self) -> None:
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
            super().close()
            sync_folder(self._path.parent)


class _LocalFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:
        path = Path(self._path)
        if not overwrite and path.exists():
            raise FileExistsError(f"Cannot create file, already exists: {self.location}")
        make_root(path.parent)
        return _Durable(path)


class DurableFileIO(PyArrowFileIO):
    """For tables in a folder of this machine: metadata and manifests are written durably."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        return _LocalFile(location=location, path=path, fs=self.fs_by_scheme(scheme, netloc))
