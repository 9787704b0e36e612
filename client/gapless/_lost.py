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

    def __str__(self) -> str:
        if self.ids is None:
            return (
                f"{self.missed} messages of {self.channel} were removed by retention before they were read;"
                f" it goes on at seq {self.first_seq}"
            )
        where = f" of {self.channel}" if self.channel else ""
        return (
            f"the history{where} has changed (a standby took over, or the database was restored). Messages"
            " that were read with ids from {} to {} may not be in the log any more: undo their effects, or"
            " publish them again. Reading goes on with the messages that are there".format(*self.ids)
        )
