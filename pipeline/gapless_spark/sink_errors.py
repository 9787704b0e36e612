"""What the sink refuses, and why."""

# ruff: noqa: N818  (they say what happened, as those of errors.py do)

from __future__ import annotations

from gapless_spark.errors import GaplessSparkError


class BadRow(GaplessSparkError):
    """A row cannot become a message. Nothing of its batch is stored."""


class PartitionTooLarge(GaplessSparkError):
    """A partition has more rows or bytes than one transaction may publish. Nothing of its batch is stored."""


class BatchChanged(GaplessSparkError):
    """A batch was written before, as another one; what was published then stays, and nothing is added."""


class BatchIncomplete(GaplessSparkError):
    """A batch is decided but not published whole. Running the query or job again publishes the rest, once."""
