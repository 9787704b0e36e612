"""History that a reader cannot have any more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gap:
    """Retention removed `missed` messages of `channel` before this reader came to them.

    The channel's oldest kept message has `first_seq`. If `ids` is set, the log's history has changed instead:
    messages from the first to the last of these ids, which this reader may have seen, are not in the log any
    more. In that case `channel` is empty if the reader follows several channels.
    """

    channel: str
    first_seq: int
    missed: int
    ids: tuple[int, int] | None = None
