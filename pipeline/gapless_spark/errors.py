"""The errors of the package. Their text tells the user what happened, why, and what to do.

The text is an error's only argument, because Spark pickles errors to send them between processes.
"""

from __future__ import annotations


class GaplessSparkError(Exception):
    """The base of all errors that this package raises on purpose. `str()` gives the text for the user."""

    @property
    def message(self) -> str:
        return str(self)


class BadOption(GaplessSparkError):
    """An option has a bad value; the text begins with the option's name."""


class DatabaseUnreachable(GaplessSparkError):
    """There is no connection to Postgres, or it was lost. A later retry may succeed."""


class AccessDenied(GaplessSparkError):
    """Postgres refused the login, or the role lacks a privilege."""


class SchemaMissing(GaplessSparkError):
    """The database exists, but Gapless is not in it."""


class SchemaTooOld(GaplessSparkError):
    """The database was migrated by an older Gapless than this package needs."""


class DataLoss(GaplessSparkError):
    """Retention removed messages before they were read."""


class OtherLog(GaplessSparkError):
    """Offsets of one log are used with another: the checkpoint belongs to another database."""


class Unsettled(GaplessSparkError):
    """A publishing transaction stayed open for longer than this package waits."""


class SnapshotGone(GaplessSparkError):
    """The snapshot of the read was closed by the session that exported it."""


class Unsupported(GaplessSparkError, ImportError):
    """PySpark is missing, or older than this package needs."""


class QueryFailed(GaplessSparkError):
    """Postgres could not run a statement of this package; the text is Postgres' own."""


def exit_code(error: GaplessSparkError) -> int:
    """The exit code for an error. 2: wrong usage; 3: the database cannot be reached or refuses; 4: retention
    removed messages first; 1: any other error."""
    if isinstance(error, BadOption):
        return 2
    if isinstance(error, DatabaseUnreachable | AccessDenied | SchemaMissing):
        return 3
    return 4 if isinstance(error, DataLoss) else 1
