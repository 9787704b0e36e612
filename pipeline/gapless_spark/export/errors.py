"""What can go wrong with an export beside the database."""

from __future__ import annotations

import errno
import re

from gapless_spark import errors
from gapless_spark.errors import GaplessSparkError

_REASON = re.compile(r"^\s*(?:Caused by: )?((?:[\w$]+\.)*[\w$]*(?:Error|Exception): .+)$", re.MULTILINE)
_OURS = re.compile(r"^\s*(?:Caused by: )?gapless_spark\.(?:\w+\.)*(\w+): (.+)$", re.MULTILINE)
_NO_ROOM = re.compile(r"No space left on device|disk is full|Disk quota exceeded", re.IGNORECASE)
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_ADVICE = (
    ". Executors need pyarrow and adbc-driver-postgresql: install them there, or let PYSPARK_PYTHON name a"
    " Python that has them on every machine"
)


class FolderBusy(GaplessSparkError):  # noqa: N818
    """Another export writes into the folder now."""


class FolderTaken(GaplessSparkError):  # noqa: N818
    """The folder holds something that is no export."""


class OtherExport(GaplessSparkError):  # noqa: N818
    """The folder holds an export with other options, of another log, or of another version of this."""


class FolderRefused(GaplessSparkError):  # noqa: N818
    """The folder cannot be written: a permission, a missing disk, a name that is too long."""


class DiskFull(GaplessSparkError):  # noqa: N818
    """There is no room left. Nothing of the batch is in the export; the next run makes it anew."""


class MissingPackage(GaplessSparkError):  # noqa: N818
    """A format needs a package that is not installed."""


class SparkFailed(GaplessSparkError):  # noqa: N818
    """Spark could not run a batch's tasks."""


def from_os(error: OSError, root: str) -> GaplessSparkError:
    """What an error of the file system means to whoever runs the export."""
    reason = on_one_line(error.strerror or str(error))
    # The packages that write tables tell it in words only.
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or _NO_ROOM.search(reason):
        return DiskFull(
            f"{root}: {reason}. The batch under way is not in the export and everything before it is; make"
            " room and run the same command again"
        )
    where = f" ({error.filename})" if error.filename else ""
    return FolderRefused(
        f"{root} cannot be written: {reason}{where}. See that it is there and that this user may write it"
    )


def from_spark(text: str) -> SparkFailed:
    """What is to be told of an error of Spark's."""
    reason = reason_of(text)
    advice = _ADVICE if reason.startswith(("ModuleNotFoundError", "ImportError")) else ""
    return SparkFailed(f"Spark could not run the batch: {reason}{advice}")


def reason_of(text: str) -> str:
    """The one line of an error of Spark's that says why, not what called what."""
    reasons = [match[1] for match in _REASON.finditer(text)]
    # Python's errors have short names, and the last one is what the others led to; of Java's it is the first.
    of_python = [reason for reason in reasons if "." not in reason.partition(":")[0]]
    lines = text.strip().splitlines() or ["no reason given"]
    reason = of_python[-1] if of_python else reasons[0] if reasons else lines[0]
    return reason.strip()[:800]


def raised_by_us(text: str) -> GaplessSparkError | None:
    """The error of this package that an error of Spark's carries; None: it carries none."""
    found = _OURS.findall(text)
    return from_wire({"kind": found[-1][0], "message": found[-1][1].strip()}) if found else None


def on_one_line(text: str) -> str:
    """A text without line breaks and colours."""
    return " ".join(_COLOUR.sub("", text).split())


def to_wire(error: GaplessSparkError) -> dict[str, str]:
    """An error as a task tells it to the driver."""
    return {"kind": type(error).__name__, "message": str(error)}


def from_wire(told: dict[str, str]) -> GaplessSparkError:
    """The error that a task told."""
    kind = globals().get(told["kind"]) or getattr(errors, told["kind"], None)
    if not isinstance(kind, type) or not issubclass(kind, GaplessSparkError):
        kind = GaplessSparkError
    return kind(told["message"])
