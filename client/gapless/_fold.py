"""What became of a channel's messages, folded from its log. No I/O: `Conversation` brings the messages.

The algorithm is written down in docs/protocol.md, under "Fold the log yourself".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from gapless._models import Message, Original

_MEMBERS = tuple(field.name for field in fields(Message))


class Annotations:
    """The annotations of one message, by who made them."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times: dict[tuple[str, str, str, str], int] = {}
        """(mode, annotator, name, key) → how often. Only in mode `total` more than once."""

    def add(self, mode: str, annotator: str, name: str, key: str) -> None:
        """One more. In mode `unique` it takes the place of the annotator's last one."""
        if mode == "unique":
            mine = [made for made in self._times if made[:2] == (mode, annotator)]
            for made in mine:
                del self._times[made]
        made = (mode, annotator, name, key)
        self._times[made] = self._times.get(made, 0) + 1 if mode == "total" else 1

    def remove(self, mode: str, annotator: str, name: str, key: str) -> None:
        """One less, if there is one."""
        made = (mode, annotator, name, key)
        times = self._times.pop(made, 0)
        if times > 1:
            self._times[made] = times - 1

    def summary(self) -> dict[str, dict[str, Any]]:
        """{name: {mode: how many}}, of names with keys also {"keys": {key: how many}}. A flag is True."""
        told: dict[str, dict[str, Any]] = {}
        for (mode, _, name, key), times in self._times.items():
            modes = told.setdefault(name, {})
            modes[mode] = True if mode == "flag" else modes.get(mode, 0) + times
            if key:
                keys = modes.setdefault("keys", {})
                keys[key] = keys.get(key, 0) + times
        return told


class Fold:
    """The messages of one channel as they are after all changes: those of `view=latest`, kept up to date.

    `load` takes originals of a page, `apply` each message of the log after the page's `head`, in order. A
    message that comes again changes nothing. Without a page begin with the channel's oldest message. What
    retention removes meanwhile stays here.
    """

    def __init__(self) -> None:
        self._originals: dict[int, Original] = {}
        self._annotations: dict[int, Annotations] = {}
        """Of the originals whose annotations are all known one by one."""
        self._sorted = True
        self.stale: set[int] = set()
        """Originals that were annotated, and of whose earlier annotations only the summary is known: read
        each with `view=latest`, and `load` it, before the next `apply`."""

    def __len__(self) -> int:
        return len(self._originals)

    def get(self, message_id: int) -> Original | None:
        """One of them, or None."""
        return self._originals.get(message_id)

    @property
    def messages(self) -> list[Original]:
        """All of them, oldest first; those that were deleted too."""
        if not self._sorted:
            self._originals = dict(sorted(self._originals.items()))
            self._sorted = True
        return list(self._originals.values())

    def load(self, originals: Iterable[Original]) -> None:
        """Take originals as the service shows them, unless a newer state is here."""
        for original in originals:
            known = self._originals.get(original.id)
            if known is not None and known.version > original.version:
                continue
            self._keep(original)
            self.stale.discard(original.id)
            self._annotations.pop(original.id, None)
            if not original.annotations:
                self._annotations[original.id] = Annotations()

    def forget(self, message_id: int) -> None:
        """It is not in the channel any more."""
        self._originals.pop(message_id, None)
        self._annotations.pop(message_id, None)
        self.stale.discard(message_id)

    def apply(self, message: Message) -> list[Original]:
        """The next message of the log. Returns the originals that it made or changed."""
        changed = []
        if message.action in (None, "reply") and message.id not in self._originals:
            made = Original(**{name: getattr(message, name) for name in _MEMBERS}, version=message.id)
            self._annotations[message.id] = Annotations()
            self._keep(made)
            changed.append(made)
        for target in self._targets(message):
            after = self._changed(target, message)
            self._originals[after.id] = after
            changed.append(after)
        return changed

    def _keep(self, original: Original) -> None:
        if original.id not in self._originals and self._originals:
            self._sorted = self._sorted and original.id > next(reversed(self._originals))
        self._originals[original.id] = original

    def _targets(self, message: Message) -> list[Original]:
        """What it changes and does not reflect it yet."""
        if message.target is None:
            return []
        if message.through is None:
            target = self._originals.get(message.target)
            found = [] if target is None else [target]
        else:
            last = min(message.through, message.id - 1)
            found = [o for id_, o in self._originals.items() if message.target <= id_ <= last]
        return [target for target in found if target.version < message.id]

    def _changed(self, target: Original, message: Message) -> Original:
        match message.action:
            case "update" if not target.deleted:
                return replace(target, data=message.data, version=message.id)
            case "delete":
                return replace(target, data=None, deleted=True, version=message.id)
            case "reply":
                return replace(target, replies=target.replies + 1, version=message.id)
            case "annotate":
                return replace(target, annotations=self._annotated(target, message), version=message.id)
        return replace(target, version=message.id)

    def _annotated(self, target: Original, message: Message) -> Mapping[str, Mapping[str, Any]]:
        known = self._annotations.get(target.id)
        if known is None:
            self.stale.add(target.id)
            return target.annotations
        count = known.remove if message.remove else known.add
        count(message.mode or "", message.sender or "", message.annotation or "", message.key or "")
        return known.summary()
