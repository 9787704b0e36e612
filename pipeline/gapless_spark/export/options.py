"""The options of an export, and those of them that must be the same in every run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from gapless_spark.columns import all_columns
from gapless_spark.errors import BadOption
from gapless_spark.selection import Selection

Format = Literal["parquet", "delta", "iceberg"]
FORMATS: tuple[Format, ...] = get_args(Format)
LAYOUT = 1
"""The version of the layout of an export's folder. An export with another layout cannot be continued."""
LAYOUT_BY_CHANNEL = 2
"""The version for an export by channel. In layout 1 its files had no column `channel`, and readers could take
two of its folder names for the same."""
WITH_CHANGES = 2
"""How much later the versions are whose files have the columns of changes: an older package would continue
without them."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The options that the first run fixes: which messages, in which format and folders. `changes`: whether
    the files have the columns of changes; an export that is older than these goes on without."""

    format: Format = "parquet"
    by_channel: bool = False
    selection: Selection = field(default_factory=Selection)
    changes: bool = True

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read: those of the source, and its optional ones."""
        return all_columns(binary=True, changes=self.changes)

    @property
    def layout(self) -> int:
        """The version of the layout for this shape."""
        return (LAYOUT_BY_CHANNEL if self.by_channel else LAYOUT) + WITH_CHANGES * self.changes


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """The options of one run. Raises `BadOption` for a root that the format cannot have.

    `root` must be the same folder on the driver and on every executor. `interval_s` is how long a follower
    waits once it has everything. A batch has about `batch_rows` messages at most.
    """

    url: str = field(repr=False)
    root: Path
    shape: Shape
    follow: bool = False
    interval_s: float = 10.0
    batch_rows: int = 5_000_000
    file_bytes: int = 128 * 1024 * 1024
    tasks: int = 2
    allow_loss: bool = False
    latest: Path | None = None
    """The folder of the table `latest`; None: there is none."""

    def __post_init__(self) -> None:
        assert self.root.is_absolute()
        assert self.tasks > 0
        assert self.batch_rows > 0
        # Iceberg names files by URL, where these characters have another meaning and lead to other folders.
        if self.shape.format == "iceberg" and (unfit := set("#%?") & set(str(self.root))):
            raise BadOption(
                f"--to: {self.root} has {' '.join(sorted(unfit))} in its name, which an Iceberg table cannot"
                " have; choose another folder"
            )
