"""A made-up run that keeps every promise, as plain lists that a test can spoil before they are recorded."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from load.history import Gap, History, Outcome
from load.patterns import matches_any


@dataclass(frozen=True)
class Said:
    """A message as one reader saw it."""

    id: int
    channel: str
    seq: int
    digest: int


@dataclass
class Reader:
    """One cursor of the made-up run."""

    name: str
    patterns: tuple[str, ...]
    start: int = 0
    fresh: bool = False
    given: list[Said] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)


@dataclass
class Run:
    """Tries as (channel, digest, key, outcome, id, seq); what is stored; and what readers saw."""

    tries: list[tuple[str, int, str | None, Outcome, int, int]]
    stored: list[Said]
    readers: list[Reader]

    def history(self) -> History:
        """The run as the load tools would have recorded it."""
        history = History(seed=1)
        for channel, value, key, outcome, message_id, seq in self.tries:
            attempt = history.invoke(channel, value, key)
            if outcome is Outcome.OK:
                history.ok(attempt, message_id, seq)
            elif outcome is Outcome.FAIL:
                history.fail(attempt)
        for reader in self.readers:
            cursor = history.cursor(reader.name, reader.patterns, reader.start, reader.fresh)
            for gap in reader.gaps:
                history.gap(cursor, gap)
            for said in reader.given:
                history.deliver(cursor, said.id, said.channel, said.seq, said.digest)
        return history

    def live(self) -> list[Reader]:
        """The readers that were there during the run."""
        return [reader for reader in self.readers if not reader.fresh]


def sample(seed: int, messages: int = 120) -> Run:
    """A correct run: tries of every outcome, idempotent retries, readers of every kind, fresh cursors."""
    chance = random.Random(seed)
    channels = [f"chat.room{n}" for n in range(4)] + ["news.eu.berlin", "news.eu.paris"]
    run = Run([], [], [])
    head = dict.fromkeys(channels, 0)
    message_id = 0
    for n in range(messages):
        channel = chance.choice(channels)
        outcome = chance.choices(list(Outcome), (1, 2, 20))[0]
        key = f"key{n}" if chance.random() < 0.2 else None
        stored = outcome is Outcome.OK or (outcome is Outcome.INFO and chance.random() < 0.5)
        if stored:
            message_id += chance.randint(1, 3)
            head[channel] += 1
            run.stored.append(Said(message_id, channel, head[channel], 1000 + n))
        run.tries.append((channel, 1000 + n, key, outcome, message_id, head[channel]))
        if key and outcome is Outcome.OK and chance.random() < 0.5:
            run.tries.insert(-1, (channel, 1000 + n, key, Outcome.INFO, 0, 0))
    _add_readers(run, channels, chance)
    return run


def _add_readers(run: Run, channels: list[str], chance: random.Random) -> None:
    run.readers = [Reader(f"one{n}", (channel,)) for n, channel in enumerate(channels)]
    run.readers += [Reader(f"set{n}", tuple(chance.sample(channels, 3))) for n in range(3)]
    run.readers += [
        Reader("all", (">",)),
        Reader("chat", ("chat.*",)),
        Reader("news", ("news.>", "chat.room1")),
    ]
    middle = run.stored[len(run.stored) // 2].id
    run.readers += [Reader("late", ("*.*",), middle), Reader("late one", (channels[0],), middle)]
    run.readers += [Reader(f"fresh {channel}", (channel,), fresh=True) for channel in channels]
    for reader in run.readers:
        reader.given = [
            said
            for said in run.stored
            if said.id > reader.start and matches_any(reader.patterns, said.channel)
        ]
