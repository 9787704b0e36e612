"""A made-up run that keeps every promise, as plain lists that a test can spoil before they are recorded."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from load.fold import Fold, fold_all
from load.history import Change, Gap, History, Outcome, Shown
from load.patterns import matches_any


@dataclass(frozen=True)
class Said:
    """A message as one reader saw it."""

    id: int
    channel: str
    seq: int
    digest: int
    change: Change | None = None


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
    """Tries as (channel, digest, key, outcome, id, seq); what is stored; and what readers saw.

    `expected`: the versions that changes expected, by id. `spoil` changes what is shown in the end.
    """

    tries: list[tuple[str, int, str | None, Outcome, int, int]]
    stored: list[Said]
    readers: list[Reader]
    expected: dict[int, int] = field(default_factory=dict)
    spoil: Callable[[History], None] = lambda history: None

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
        for said in (each for reader in self.readers for each in reader.given):
            history.log.data.setdefault(said.id, said.digest)
            if said.change is not None:
                history.log.changes.setdefault(said.id, said.change)
        history.expected.update(self.expected)
        self._show(history)
        self.spoil(history)
        return history

    def _show(self, history: History) -> None:
        """Fold what readers were given, and let the service show what is stored."""
        for channel in {said.channel for said in self.stored}:
            view, fold = Shown(f"view of {channel}", (channel,), is_view=True), Fold(history.log)
            history.shown.append(view)
            for said in self.stored:
                if said.channel == channel and said.id in history.log.row:
                    fold.apply(said.id)
            for message_id, state in fold.states().items():
                history.show(view, message_id, state)
        fold_all(history, history.readers())

    def live(self) -> list[Reader]:
        """The readers that were there during the run."""
        return [reader for reader in self.readers if not reader.fresh]


def sample(seed: int, messages: int = 120) -> Run:
    """A correct run: tries of every outcome, idempotent retries, readers of every kind, fresh cursors."""
    chance = random.Random(seed)
    channels = [f"chat.room{n}" for n in range(4)] + ["news.eu.berlin", "news.eu.paris"]
    run = Run([], [], [])
    head = dict.fromkeys(channels, 0)
    originals: dict[str, list[int]] = {channel: [] for channel in channels}
    version: dict[int, int] = {}
    message_id = 0
    for n in range(messages):
        channel = chance.choice(channels)
        outcome = chance.choices(list(Outcome), (1, 2, 20))[0]
        key = f"key{n}" if chance.random() < 0.2 else None
        stored = outcome is Outcome.OK or (outcome is Outcome.INFO and chance.random() < 0.5)
        if stored:
            message_id += chance.randint(1, 3)
            head[channel] += 1
            said = Said(message_id, channel, head[channel], 1000 + n)
            if originals[channel] and chance.random() < 0.6:
                said = replace(said, change=_change(chance, originals[channel]))
            run.stored.append(said)
            _expect(run, said, originals[channel], version, expects=chance.random() < 0.2)
        run.tries.append((channel, 1000 + n, key, outcome, message_id, head[channel]))
        if key and outcome is Outcome.OK and chance.random() < 0.5:
            run.tries.insert(-1, (channel, 1000 + n, key, Outcome.INFO, 0, 0))
    _add_readers(run, channels, chance)
    return run


def _change(chance: random.Random, originals: list[int]) -> Change:
    """A change of one of these, mostly of a new one."""
    target = originals[-min(len(originals), 1 + int(chance.expovariate(1.2)))]
    match chance.choice(("update", "update", "delete", "cut", "reply", *["annotate"] * 6)):
        case "cut":
            return Change(target, "delete", target + chance.choice((0, 6, 1000)))
        case "annotate":
            made = (chance.choice(("total", "distinct", "unique", "flag")), chance.choice(("", "ann")))
            named = (chance.choice("aab"), chance.choice(("", "", "up")))
            return Change(target, "annotate", 0, *made, *named, remove=chance.random() < 0.3)
        case action:
            return Change(target, action)


def _expect(run: Run, said: Said, originals: list[int], version: dict[int, int], *, expects: bool) -> None:
    """Note which version a change found, and which messages have another one now."""
    change = said.change
    if change is not None:
        if expects:
            run.expected[said.id] = version[change.target]
        last = change.through or change.target
        version.update({each: said.id for each in originals if change.target <= each <= last})
    if change is None or change.is_original:
        originals.append(said.id)
        version[said.id] = said.id


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
