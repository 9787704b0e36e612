"""The hot tail of a feed: its newest entries, complete between two ids, bounded in bytes."""

from __future__ import annotations

from bisect import bisect_right

from subscriptions.engine.entry import Entry


class Tail:
    """Holds all messages of the feed's selection in (`base`, `head`]. Over the byte limit, the oldest entries
    are dropped, which raises `base`: a reader below it reads the database."""

    __slots__ = ("_bytes", "_entries", "_ids", "base", "head", "max_bytes")

    def __init__(self, base: int, max_bytes: int) -> None:
        self.base = base
        self.head = base
        self.max_bytes = max_bytes
        self._ids: list[int] = []
        self._entries: list[Entry] = []
        self._bytes = 0

    def __repr__(self) -> str:
        return f"Tail(({self.base}, {self.head}], {len(self._ids)} entries, {self._bytes} bytes)"

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def append(self, entries: list[Entry], head: int) -> None:
        """Add the next entries, complete up to and including id `head`."""
        assert not entries or (entries[0].id > self.head and entries[-1].id <= head), "a tail only grows"
        for entry in entries:
            self._ids.append(entry.id)
            self._entries.append(entry)
            self._bytes += entry.size_bytes
        self.head = max(self.head, head)
        if self._bytes > self.max_bytes:
            self._shrink()

    def bound(self, max_bytes: int) -> None:
        """Set the byte limit from here on."""
        self.max_bytes = max_bytes
        if self._bytes > max_bytes:
            self._shrink()

    def reset(self, base: int) -> None:
        """Drop all entries and start again after `base`."""
        self._ids.clear()
        self._entries.clear()
        self._bytes = 0
        self.base = self.head = max(base, self.head)

    def after(self, cursor: int, max_bytes: int) -> tuple[list[Entry], int]:
        """Entries after `cursor`, about `max_bytes` but at least one entry; and the new cursor.

        The cursor must not be below `base`.
        """
        assert cursor >= self.base, "below the base the tail knows nothing"
        at = bisect_right(self._ids, cursor)
        end = len(self._ids)
        if at == end:
            return [], max(cursor, self.head)
        if self._bytes <= max_bytes:
            return self._entries[at:], self.head
        total = 0
        for index in range(at, end):
            total += len(self._entries[index].body)
            if total >= max_bytes and index + 1 < end:
                return self._entries[at : index + 1], self._ids[index]
        return self._entries[at:], self.head

    def _shrink(self) -> None:
        """Drop the oldest quarter at least, so that the cost of moving the rest is spread out."""
        target = self.max_bytes * 3 // 4
        drop = 0
        while drop < len(self._entries) and self._bytes > target:
            self._bytes -= self._entries[drop].size_bytes
            drop += 1
        if drop:
            self.base = self._ids[drop - 1]
            del self._ids[:drop]
            del self._entries[:drop]
