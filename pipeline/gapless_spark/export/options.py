"""What an export was asked for, and what of it must stay the same when it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from gapless_spark.columns import BINARY, COLUMNS
from gapless_spark.errors import BadOption
from gapless_spark.selection import Selection

Format = Literal["parquet", "delta", "iceberg"]
FORMATS: tuple[Format, ...] = get_args(Format)
LAYOUT = 1
"""The version of what lies in an export's folder. A later one that differs cannot go on with it."""
LAYOUT_BY_CHANNEL = 2
"""The same of an export by channel. In layout 1 its files had no column `channel`, and the names of its
folders could become one for readers."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the first run fixes: which messages, in which format and folders."""

    format: Format = "parquet"
    by_channel: bool = False
    selection: Selection = field(default_factory=Selection)

    @property
    def columns(self) -> tuple[str, ...]:
        """What is read: the columns of the source and the bytes of binary data, so that nothing is lost."""
        return (*COLUMNS, BINARY)

    @property
    def layout(self) -> int:
        """The version of the layout that an export of this shape has."""
        return LAYOUT_BY_CHANNEL if self.by_channel else LAYOUT


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """One run. `root` must mean the same folder on the driver and on every executor. `interval_s` is how long
    a follower waits once it has everything; a batch has about `batch_rows` messages at most. Raises
    `BadOption` for a root that the format cannot have."""

    url: str = field(repr=False)
    root: Path
    shape: Shape
    follow: bool = False
    interval_s: float = 10.0
    batch_rows: int = 5_000_000
    file_bytes: int = 128 * 1024 * 1024
    tasks: int = 2
    allow_loss: bool = False

    def __post_init__(self) -> None:
        assert self.root.is_absolute()
        assert self.tasks > 0
        assert self.batch_rows > 0
        # The table names its folder and files by addresses, and others' folders would be taken for this one.
        if self.shape.format == "iceberg" and (unfit := set("#%?") & set(str(self.root))):
            raise BadOption(
                f"--to: {self.root} has {' '.join(sorted(unfit))} in its name, which an Iceberg table cannot"
                " have; choose another folder"
            )
