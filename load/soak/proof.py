"""What one reader was given, held against what must be: `seq` is dense, so a number a channel proves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

EXAMPLES = 3


@dataclass(slots=True)
class Breaches:
    """What one reader found. `examples` name a few."""

    lost: int = 0
    doubled: int = 0
    unordered: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def any(self) -> bool:
        """Whether anything was broken."""
        return bool(self.lost or self.doubled or self.unordered)

    def tell(self, example: str) -> None:
        """Keep it while there is room."""
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)

    def line(self) -> str:
        """As the verdict says it."""
        return f"{self.lost:,} lost, {self.doubled:,} doubled, {self.unordered:,} out of order"


@dataclass(slots=True)
class Ordered:
    """A reader that is given everything in one order by id, from the first message on: a stream, or Spark."""

    name: str
    taken: int = 0
    last_id: int = 0
    heads: dict[str, int] = field(default_factory=dict)
    """The highest seq of each channel so far."""
    holes: set[tuple[str, int]] = field(default_factory=set)
    """What was passed over: lost, unless it comes late."""
    breaches: Breaches = field(default_factory=Breaches)

    def take(self, message_id: int, channel: str, seq: int) -> None:
        """One message, as it came."""
        self.taken += 1
        head = self.heads.get(channel, 0)
        if seq == head + 1 and message_id > self.last_id:
            self.heads[channel], self.last_id = seq, message_id
            return
        where = f"{self.name}: {channel} seq {seq} (id {message_id}) after seq {head} (id {self.last_id})"
        self.breaches.tell(where)
        late = (channel, seq) in self.holes
        if seq <= head and not late:
            self.breaches.doubled += 1
            return
        self.holes.discard((channel, seq))
        self.holes.update((channel, missed) for missed in range(head + 1, seq))
        if late or message_id <= self.last_id:
            self.breaches.unordered += 1
        self.heads[channel] = max(head, seq)
        self.last_id = max(self.last_id, message_id)

    def finish(self, heads: Mapping[str, int]) -> Breaches:
        """The verdict; `heads` is the last seq of every channel that it asked for."""
        self.breaches.lost = len(self.holes)
        for channel, head in heads.items():
            missing = head - self.heads.get(channel, 0)
            self.breaches.lost += max(0, missing)
            if missing > 0:
                self.breaches.tell(f"{self.name}: {channel} ends at seq {head - missing} of {head}")
        for channel in self.heads.keys() - heads.keys():
            self.breaches.tell(f"{self.name}: {channel} was not asked for")
            self.breaches.unordered += 1
        return self.breaches

    def to_json(self) -> dict[str, object]:
        """All of it, for a reader in another process."""
        return {**asdict(self), "holes": sorted(self.holes)}

    @staticmethod
    def from_json(said: dict[str, object]) -> Ordered:
        """What `to_json` gave."""
        fields = dict(said)
        fields["holes"] = {(channel, seq) for channel, seq in fields["holes"]}  # type: ignore[attr-defined]
        fields["breaches"] = Breaches(**fields["breaches"])  # type: ignore[arg-type]
        return Ordered(**fields)  # type: ignore[arg-type]


@dataclass(slots=True)
class Queued:
    """A queue whose members compete, ordered by key: each message once, and those of a key in order."""

    name: str
    taken: int = 0
    floors: dict[str, int] = field(default_factory=dict)
    """Every seq of a channel up to here was delivered."""
    above: dict[str, set[int]] = field(default_factory=dict)
    keys: dict[tuple[str, str | None], int] = field(default_factory=dict)
    breaches: Breaches = field(default_factory=Breaches)

    def take(self, channel: str, seq: int, key: str | None) -> None:
        """One delivery, as it came to any member."""
        floor, above = self.floors.get(channel, 0), self.above.setdefault(channel, set())
        if seq <= floor or seq in above:
            self.breaches.doubled += 1
            self.breaches.tell(f"{self.name}: {channel} seq {seq} again")
            return
        self.taken += 1
        if key is not None and seq < self.keys.get((channel, key), 0):
            self.breaches.unordered += 1
            self.breaches.tell(f"{self.name}: {channel} seq {seq} after {self.keys[channel, key]} of {key}")
        self.keys[channel, key] = max(seq, self.keys.get((channel, key), 0))
        above.add(seq)
        while floor + 1 in above:
            floor += 1
            above.remove(floor)
        self.floors[channel] = floor

    def finish(self, heads: Mapping[str, int]) -> Breaches:
        """The verdict; `heads` is the last seq of every channel of the queue."""
        for channel, head in heads.items():
            missing = head - self.floors.get(channel, 0) - len(self.above.get(channel, ()))
            self.breaches.lost += max(0, missing)
            if missing > 0:
                self.breaches.tell(
                    f"{self.name}: {channel} lacks {missing} of {head}, after {self.floors.get(channel, 0)}"
                )
        for channel in self.floors.keys() - heads.keys():
            self.breaches.tell(f"{self.name}: {channel} was not asked for")
            self.breaches.unordered += 1
        return self.breaches
