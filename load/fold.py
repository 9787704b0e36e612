"""What readers make of the changes that they receive: the fold of docs/protocol.md, "Fold the log yourself".

It takes messages in the order in which a reader got them. `load.views` judges it by another way.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from load.history import Change, Cursor, History, Log, Shown, State, as_text


@dataclass(slots=True)
class _Original:
    version: int
    data: int
    deleted: bool = False
    replies: int = 0
    times: dict[tuple[str, str, str, str], int] = field(default_factory=dict)
    """(mode, annotator, name, key) → how often. Only in mode `total` more than once."""

    def state(self) -> State:
        return State(self.version, self.data, self.deleted, self.replies, as_text(self._summary()))

    def _summary(self) -> dict[str, Any]:
        told: dict[str, Any] = {}
        for (mode, _, name, key), times in self.times.items():
            modes = told.setdefault(name, {})
            modes[mode] = True if mode == "flag" else modes.get(mode, 0) + times
            if key:
                keys = modes.setdefault("keys", {})
                keys[key] = keys.get(key, 0) + times
        return told


class Fold:
    """The originals of one channel, from the log of a run."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._originals: dict[int, _Original] = {}

    def states(self) -> dict[int, State]:
        """Each original as it is now."""
        return {message_id: original.state() for message_id, original in self._originals.items()}

    def apply(self, message_id: int) -> None:
        """The next message that the reader got."""
        change = self._log.changes.get(message_id)
        data = self._log.data.get(message_id, 0)
        if message_id not in self._originals and (change is None or change.is_original):
            self._originals[message_id] = _Original(message_id, data)
        if change is None:
            return
        for target in self._targets(change, message_id):
            original = self._originals[target]
            if self._is_newer(original, message_id):
                self._change(original, change, data)
                original.version = message_id

    def _targets(self, change: Change, message_id: int) -> list[int]:
        if not change.through:
            return [change.target] if change.target in self._originals else []
        last = min(change.through, message_id)
        return [known for known in self._originals if change.target <= known <= last]

    def _is_newer(self, original: _Original, message_id: int) -> bool:
        return original.version < message_id

    def _change(self, original: _Original, change: Change, data: int) -> None:
        match change.action:
            case "update" if not original.deleted:
                original.data = data
            case "delete":
                original.deleted, original.data = True, 0
            case "reply":
                original.replies += 1
            case "annotate":
                self._annotate(original.times, change)

    def _annotate(self, times: dict[tuple[str, str, str, str], int], change: Change) -> None:
        made = (change.mode, change.annotator, change.name, change.key)
        if change.remove:
            left = times.pop(made, 0) - 1
            if left > 0:
                times[made] = left
            return
        if change.mode == "unique":
            for other in [other for other in times if other[:2] == made[:2]]:
                del times[other]
        times[made] = times.get(made, 0) + 1 if change.mode == "total" else 1


def fold_all(history: History, cursors: Iterable[Cursor]) -> None:
    """Note what each reader makes of what it got, channel by channel.

    Readers that got the same messages of a channel in the same order share one fold. A reader that was told
    of a gap would begin again with a page, and shows nothing here.
    """
    known: dict[tuple[int, bytes], dict[int, State]] = {}
    for cursor in cursors:
        if cursor.gaps:
            continue
        shown = Shown(cursor.name, cursor.patterns, cursor.start)
        history.shown.append(shown)
        for number, ids in _by_channel(history.log, cursor).items():
            states = known.get((number, ids.tobytes()))
            if states is None:
                states = known[number, ids.tobytes()] = _folded(history.log, ids)
            for message_id, state in states.items():
                history.show(shown, message_id, state)


def _by_channel(log: Log, cursor: Cursor) -> dict[int, array[int]]:
    found: dict[int, array[int]] = {}
    for message_id in cursor.ids:
        number = log.channel[log.row[message_id]]
        ids = found.get(number)
        if ids is None:
            ids = found[number] = array("q")
        ids.append(message_id)
    return found


def _folded(log: Log, ids: Iterable[int]) -> dict[int, State]:
    fold = Fold(log)
    for message_id in ids:
        fold.apply(message_id)
    return fold.states()
