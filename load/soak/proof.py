"""Checks what one reader gets while it reads, in little memory, for runs of any length: `seq` is dense, so
one number for each channel proves that nothing is missing.

`load.sequence` and `load.checker` do the same for a reader whose whole history is stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from load.verdict import Breach, Verdict


@dataclass(slots=True)
class Ordered:
    """A reader that gets all messages in the order of ids, from the first one on: a stream, or Spark."""

    name: str
    taken: int = 0
    last_id: int = 0
    heads: dict[str, int] = field(default_factory=dict)
    """The highest seq of each channel so far."""
    holes: set[tuple[str, int]] = field(default_factory=set)
    """The messages (channel, seq) that were skipped: lost, unless they come late."""
    verdict: Verdict = field(default_factory=Verdict)

    def take(self, message_id: int, channel: str, seq: int) -> None:
        """Check one message, in the order of arrival."""
        self.taken += 1
        head = self.heads.get(channel, 0)
        if seq == head + 1 and message_id > self.last_id:
            self.heads[channel], self.last_id = seq, message_id
            return
        where = f"{self.name}: {channel} seq {seq} (id {message_id}) after seq {head} (id {self.last_id})"
        late = (channel, seq) in self.holes
        if seq <= head and not late:
            self.verdict.add(Breach.DOUBLED, where)
            return
        self.holes.discard((channel, seq))
        self.holes.update((channel, missed) for missed in range(head + 1, seq))
        if late or message_id <= self.last_id:
            self.verdict.add(Breach.OUT_OF_ORDER, where)
        self.heads[channel] = max(head, seq)
        self.last_id = max(self.last_id, message_id)

    def finish(self, heads: Mapping[str, int]) -> Verdict:
        """The verdict; `heads` has the last seq of every channel that the reader asked for."""
        for channel, seq in sorted(self.holes):
            self.verdict.add(Breach.LOST, f"{self.name}: {channel} seq {seq} was passed over")
        for channel, head in heads.items():
            end = self.heads.get(channel, 0)
            self.verdict.add(Breach.LOST, f"{self.name}: {channel} ends at seq {end} of {head}", head - end)
        return _check_asked(self.name, self.heads, heads, self.verdict)

    def to_json(self) -> dict[str, Any]:
        """The whole state, for another process."""
        kept = {"name": self.name, "taken": self.taken, "last_id": self.last_id, "heads": self.heads}
        return {**kept, "holes": sorted(self.holes), "verdict": self.verdict.to_json()}

    @staticmethod
    def from_json(state: dict[str, Any]) -> Ordered:
        """The reader whose `to_json` this is."""
        holes = {(channel, seq) for channel, seq in state["holes"]}
        return Ordered(**{**state, "holes": holes, "verdict": Verdict.from_json(state["verdict"])})


@dataclass(slots=True)
class Queued:
    """A queue with competing members, ordered by key: each message once, and those of a key in order."""

    name: str
    taken: int = 0
    floors: dict[str, int] = field(default_factory=dict)
    """For each channel, the seq up to which everything was delivered."""
    above: dict[str, set[int]] = field(default_factory=dict)
    keys: dict[tuple[str, str | None], int] = field(default_factory=dict)
    verdict: Verdict = field(default_factory=Verdict)

    def take(self, channel: str, seq: int, key: str | None) -> None:
        """Check one delivery to any member, in the order of arrival."""
        floor, above = self.floors.get(channel, 0), self.above.setdefault(channel, set())
        if seq <= floor or seq in above:
            self.verdict.add(Breach.DOUBLED, f"{self.name}: {channel} seq {seq} again")
            return
        self.taken += 1
        last = self.keys.get((channel, key), 0)
        if key is not None and seq < last:
            self.verdict.add(Breach.OUT_OF_ORDER, f"{self.name}: {channel} seq {seq} after {last} of {key}")
        self.keys[channel, key] = max(seq, last)
        above.add(seq)
        while floor + 1 in above:
            floor += 1
            above.remove(floor)
        self.floors[channel] = floor

    def finish(self, heads: Mapping[str, int]) -> Verdict:
        """The verdict; `heads` has the last seq of every channel of the queue."""
        for channel, head in heads.items():
            floor = self.floors.get(channel, 0)
            missing = head - floor - len(self.above.get(channel, ()))
            self.verdict.add(
                Breach.LOST, f"{self.name}: {channel} lacks {missing} of {head}, after {floor}", missing
            )
        return _check_asked(self.name, self.floors, heads, self.verdict)


def _check_asked(name: str, given: Mapping[str, int], asked: Mapping[str, int], verdict: Verdict) -> Verdict:
    for channel in given.keys() - asked.keys():
        verdict.add(Breach.PHANTOM, f"{name}: {channel} was not asked for")
    return verdict
