"""What a run has stored, and what each reader of it must get."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import chain

from load.history import Cursor, History
from load.patterns import matches_any


@dataclass(slots=True)
class Truth:
    """The messages that readers must get: those that fresh cursors read, or without such cursors all messages
    seen."""

    history: History
    drained: bool
    ids: set[int]
    by_channel: list[array[int]]
    owed: dict[tuple[str, ...], array[int]] = field(default_factory=dict)

    @staticmethod
    def of(history: History) -> Truth:
        """Collect the messages of a history. The ids of one channel ascend."""
        log = history.log
        drained = any(True for _ in history.fresh())
        ids = set(chain.from_iterable(c.ids for c in history.fresh())) if drained else set(log.row)
        by_channel = [array("q") for _ in log.names]
        for message_id in sorted(ids):
            by_channel[log.channel[log.row[message_id]]].append(message_id)
        return Truth(history, drained, ids, by_channel)

    def owed_to(self, cursor: Cursor) -> array[int]:
        """The ids that a cursor must get, in order, those in announced gaps included."""
        every = self.owed.get(cursor.patterns)
        if every is None:
            names = self.history.log.names
            runs = (ids for name, ids in zip(names, self.by_channel, strict=True)
                    if ids and matches_any(cursor.patterns, name))  # fmt: skip
            every = self.owed[cursor.patterns] = array("q", sorted(chain.from_iterable(runs)))
        return every[bisect_right(every, cursor.start) :] if cursor.start else every
