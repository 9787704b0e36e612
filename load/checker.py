"""Checks the history of a log and its readers for breaches of the guarantees, in linear time.

`python -m load.checker FILE` checks a stored history again.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from load.drill import conclude, parser, played
from load.history import UNKNOWN, Cursor, Gap, History, Outcome
from load.patterns import matches_any
from load.sequence import check_given
from load.truth import Truth
from load.verdict import USUAL, Breach, Verdict
from load.views import check_order, check_views


def check(history: History) -> Verdict:
    """Check a whole run: the log itself, the answers to publishers, every cursor, and all changes."""
    changing = (Breach.EARLY, Breach.FOLDED, Breach.VIEW) if history.log.changes else ()
    verdict = Verdict((*USUAL, Breach.HOLES, *changing))
    truth = Truth.of(history)
    _check_density(truth, verdict)
    stored = [_digests(history, ids) for ids in truth.by_channel]
    _check_attempts(history, stored, verdict)
    _check_told(truth, verdict)
    for cursor in history.cursors:
        _check_cursor(cursor, truth, verdict)
    if history.log.changes or history.shown:
        check_views(truth, verdict)
    deliveries = sum(len(cursor.ids) for cursor in history.readers())
    verdict.checked = (
        f"{len(truth.ids):,} messages in {sum(1 for ids in truth.by_channel if ids):,} channels, "
        f"{_of_changes(truth)}"
        f"{deliveries:,} deliveries to {sum(1 for _ in history.readers()):,} readers, "
        f"{sum(len(c.resumes) for c in history.readers()):,} reconnects, seed {history.seed}"
    )
    return verdict


def _of_changes(truth: Truth) -> str:
    """How many messages change others, and how often originals are shown; nothing without changes."""
    changes = sum(1 for message_id in truth.history.log.changes if message_id in truth.ids)
    shown = sum(len(each.ids) for each in truth.history.shown)
    return f"{changes:,} of them with a target, {shown:,} originals shown, " if changes else ""


def _digests(history: History, ids: Iterable[int]) -> array[int]:
    log = history.log
    return array("q", (log.digest[log.row[message_id]] for message_id in ids))


def _check_density(truth: Truth, verdict: Verdict) -> None:
    """Within a channel seq must count 1, 2, 3, … along the ids, unless a gap was announced."""
    log = truth.history.log
    for name, ids in zip(log.names, truth.by_channel, strict=True):
        if not ids:
            continue
        watchers = [c for c in truth.history.cursors if matches_any(c.patterns, name)]
        announced = [gap for cursor in watchers for gap in cursor.gaps if gap.channel == name]
        whole = any(cursor.start == 0 for cursor in watchers)
        seqs = [log.seq[log.row[message_id]] for message_id in ids]
        last = 0 if whole else seqs[0] - 1
        for seq in seqs:
            if seq == last:
                verdict.add(Breach.DISAGREE, f"{name}: seq {seq} has two ids")
            elif seq < last:
                verdict.add(Breach.OUT_OF_ORDER, f"{name}: seq {seq} has a greater id than seq {last}")
            elif missing := _unannounced(last + 1, seq, name, announced):
                verdict.add(Breach.HOLES, f"{name}: a hole between seq {last} and {seq}", missing)
            last = max(last, seq)


def _unannounced(first: int, end: int, channel: str, gaps: list[Gap]) -> int:
    """How many seqs from `first` up to `end` (excluded) are in no gap event."""
    if not gaps:
        return end - first
    return sum(not any(gap.covers(channel, seq) for gap in gaps) for seq in range(first, end))


def _check_told(truth: Truth, verdict: Verdict) -> None:
    """Check that every id in an answer to a publisher is in the log, with the message that was sent."""
    told = truth.history.told
    for odd in told.odd:
        verdict.add(Breach.DISAGREE, f"a publisher was told id {odd.id}, seq {odd.seq} for another message")
    for message_id in told.ids:
        if message_id not in truth.ids:
            verdict.add(Breach.LOST, f"id {message_id} was confirmed and is not in the log")


def _check_cursor(cursor: Cursor, truth: Truth, verdict: Verdict) -> None:
    owed = truth.owed_to(cursor)
    if not cursor.odd and cursor.ids == owed:
        return
    for odd in cursor.odd:
        verdict.add(Breach.DISAGREE, f"{cursor.name}: id {odd.id} as seq {odd.seq} of {odd.channel}")
        if not matches_any(cursor.patterns, odd.channel):
            verdict.add(Breach.PHANTOM, f"{cursor.name}: id {odd.id} of {odd.channel}, not asked for")
    seen = check_given(cursor.name, cursor.ids, set(owed), verdict, after=cursor.start)
    _check_missing(cursor, [i for i in owed if i not in seen], truth, verdict)
    check_order(cursor, truth.history.log, verdict)


def _check_missing(cursor: Cursor, missing: list[int], truth: Truth, verdict: Verdict) -> None:
    """Count missing messages, and holes in the seqs that a reader got."""
    log = truth.history.log
    seen = (min(cursor.ids), max(cursor.ids)) if cursor.ids else None
    newest: dict[int, int] = {}
    for message_id in cursor.ids:
        row = log.row[message_id]
        newest[log.channel[row]] = max(newest.get(log.channel[row], 0), log.seq[row])
    for message_id in missing:
        row = log.row[message_id]
        number, seq = log.channel[row], log.seq[row]
        name = log.names[number]
        if any(gap.covers(name, seq) for gap in cursor.gaps):
            continue
        place = _place(message_id, seen)
        verdict.add(Breach.LOST, f"{cursor.name}: id {message_id}, seq {seq} of {name} ({place})")
        if seq < newest.get(number, 0):
            verdict.add(Breach.HOLES, f"{cursor.name}: seq {seq} of {name} skipped without a gap event")


def _place(message_id: int, seen: tuple[int, int] | None) -> str:
    """Where a loss is. One in the middle does not come from a slow reader; one before the first is lost
    history."""
    if seen is None:
        return "got nothing"
    if message_id < seen[0]:
        return "before its first"
    return "after its last" if message_id > seen[1] else "in the middle"


# --- the outcomes that publishers know, compared with the stored messages


@dataclass(slots=True)
class Tries:
    """The attempts to publish into one channel. Those with one key count once."""

    surest: dict[Outcome, Counter[int]] = field(default_factory=lambda: {o: Counter() for o in Outcome})
    order: array[int] = field(default_factory=lambda: array("q"))


def _check_attempts(history: History, stored: list[array[int]], verdict: Verdict) -> None:
    """Compare attempts with stored messages. `stored` has the digests of each channel's messages, in id
    order.

    A history without attempts is not checked here.
    """
    if not len(history.attempts):
        return
    tries = _tries(history, verdict)
    changing = {history.log.digest[history.log.row[each]] for each in history.log.changes}
    for number, name in enumerate(history.log.names):
        known = tries.get(number, Tries())
        found = Counter(stored[number])
        _check_counts(name, known, found, verdict)
        confirmed = known.surest[Outcome.OK]
        # The two orders can be compared only if exactly the confirmed messages are stored.
        if history.in_order and found == confirmed:
            orders = ([each for each in order if each not in changing]
                      for order in (known.order, stored[number]))  # fmt: skip
            moved = sum(a != b for a, b in zip(*orders, strict=True))
            verdict.add(Breach.OUT_OF_ORDER, f"{name}: {moved} not in the order of their publishes", moved)


def _tries(history: History, verdict: Verdict) -> dict[int, Tries]:
    attempts = history.attempts
    best = _best_by_key(history, verdict)
    tries: dict[int, Tries] = {}
    for attempt in range(len(attempts)):
        key = attempts.key.get(attempt)
        if key is not None and best[key] != attempt:
            continue
        known = tries.setdefault(attempts.channel[attempt], Tries())
        outcome = attempts.outcome_of(attempt)
        known.surest[outcome][attempts.digest[attempt]] += 1
        if outcome is Outcome.OK:
            known.order.append(attempts.digest[attempt])
    return tries


def _best_by_key(history: History, verdict: Verdict) -> dict[str, int]:
    """The surest attempt of each idempotency key. All confirmations of a key must have the same id."""
    attempts = history.attempts
    best: dict[str, int] = {}
    for attempt, key in attempts.key.items():
        other = best.setdefault(key, attempt)
        ids = {attempts.id[attempt], attempts.id[other]} - {UNKNOWN}
        if len(ids) > 1:
            verdict.add(Breach.DOUBLED, f"key {key} got the ids {sorted(ids)}")
        if attempts.outcome_of(attempt) > attempts.outcome_of(other):
            best[key] = attempt
    return best


def _check_counts(name: str, known: Tries, found: Counter[int], verdict: Verdict) -> None:
    confirmed, open_, refused = (known.surest[o] for o in (Outcome.OK, Outcome.INFO, Outcome.FAIL))
    for value, count in confirmed.items():
        if found[value] < count:
            verdict.add(Breach.LOST, f"{name}: confirmed and not stored", count - found[value])
    for value, count in found.items():
        extra = count - confirmed[value] - open_[value]
        if extra <= 0:
            continue
        if confirmed[value] or open_[value]:
            verdict.add(Breach.DOUBLED, f"{name}: stored {count} times", extra)
        elif refused[value]:
            verdict.add(Breach.DISHONEST, f"{name}: refused and stored", extra)
        else:
            verdict.add(Breach.PHANTOM, f"{name}: stored and never published", extra)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a stored history."""
    from load.archive import read

    options = parser("checker", __doc__, "load/results/chat-20260101-000000/history.jsonl.gz")
    options.add_argument("history", type=Path, help="the file of a run")
    chosen = options.parse_args(arguments)
    return conclude(played(lambda: check(read(chosen.history))))


if __name__ == "__main__":
    sys.exit(main())
