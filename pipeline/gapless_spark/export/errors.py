"""The errors of an export, except those of the database."""

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
    """Another export is writing into the folder."""


class FolderTaken(GaplessSparkError):  # noqa: N818
    """The folder holds something other than an export."""


class OtherExport(GaplessSparkError):  # noqa: N818
    """The folder holds an export with other options, of another log, or of another version of this
    package."""


class FolderRefused(GaplessSparkError):  # noqa: N818
    """The folder cannot be written, for example for a missing permission or disk, or for a name too long."""


class DiskFull(GaplessSparkError):  # noqa: N818
    """The disk is full. Nothing of the batch is in the export; the next run makes the batch again."""


class MissingPackage(GaplessSparkError):  # noqa: N818
    """A format needs a package that is not installed."""


class SparkFailed(GaplessSparkError):  # noqa: N818
    """Spark could not run a batch's tasks."""


def from_os(error: OSError, root: str) -> GaplessSparkError:
    """The error of an export for an error of the file system."""
    reason = on_one_line(error.strerror or str(error))
    # The packages that write tables report a full disk only in the text of the error.
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or _NO_ROOM.search(reason):
        return DiskFull(
            f"{root}: {reason}. The batch under way is not in the export and everything before it is; make"
            " room and run the same command again"
        )
    where = f" ({error.filename})" if error.filename else ""
    return FolderRefused(
        f"{root} cannot be written: {reason}{where}. Check that it exists and that this user may write to it"
    )


def from_spark(text: str) -> SparkFailed:
    """The error of an export for the text of an error from Spark."""
    reason = reason_of(text)
    advice = _ADVICE if reason.startswith(("ModuleNotFoundError", "ImportError")) else ""
    return SparkFailed(f"Spark could not run the batch: {reason}{advice}")


def reason_of(text: str) -> str:
    """The line of a text from Spark that gives the reason, without the stack traces."""
    reasons = [match[1] for match in _REASON.finditer(text)]
    # Python's errors have names without dots, and the last one is the result of the others. Of Java's errors
    # it is the first one.
    of_python = [reason for reason in reasons if "." not in reason.partition(":")[0]]
    lines = text.strip().splitlines() or ["no reason given"]
    reason = of_python[-1] if of_python else reasons[0] if reasons else lines[0]
    return reason.strip()[:800]


def raised_by_us(text: str) -> GaplessSparkError | None:
    """The error of this package inside a text from Spark, or None."""
    found = _OURS.findall(text)
    return from_wire({"kind": found[-1][0], "message": found[-1][1].strip()}) if found else None


def on_one_line(text: str) -> str:
    """A text without line breaks and colours."""
    return " ".join(_COLOUR.sub("", text).split())


def to_wire(error: GaplessSparkError) -> dict[str, str]:
    """An error as a task sends it to the driver."""
    return {"kind": type(error).__name__, "message": str(error)}


def from_wire(sent: dict[str, str]) -> GaplessSparkError:
    """The error that a task sent."""
    kind = globals().get(sent["kind"]) or getattr(errors, sent["kind"], None)
    if not isinstance(kind, type) or not issubclass(kind, GaplessSparkError):
        kind = GaplessSparkError
    return kind(sent["message"])
