"""The errors of the sink."""

# ruff: noqa: N818  (the names say what happened, as in errors.py)

from __future__ import annotations

from gapless_spark.errors import GaplessSparkError


class BadRow(GaplessSparkError):
    """A row cannot become a message. Nothing of its batch is stored."""


class PartitionTooLarge(GaplessSparkError):
    """A partition has more rows or bytes than one transaction may publish. Nothing of its batch is stored."""


class BatchChanged(GaplessSparkError):
    """A batch was written before with other rows. The messages published then stay, and none is added."""


class ChangeRefused(GaplessSparkError):
    """The service refuses a change. The transaction that holds it stores nothing, nor do those after it."""


class BatchIncomplete(GaplessSparkError):
    """A batch is decided but not fully published. The next run publishes the rest, once."""
