"""Holds what publishers know against what is stored: nothing confirmed is absent, nothing else is there."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

from load.history import UNKNOWN, History, Outcome
from load.verdict import Breach, Verdict


@dataclass(slots=True)
class Tries:
    """The tries to publish into one channel, tries with one key taken together."""

    surest: dict[Outcome, Counter[int]] = field(default_factory=lambda: {o: Counter() for o in Outcome})
    order: array[int] = field(default_factory=lambda: array("q"))


def check_attempts(history: History, stored: list[array[int]], verdict: Verdict) -> None:
    """`stored` holds, for each channel number, the digests of its stored messages in the order of ids.

    A history without tries knows only the readers' side: then nothing is said here.
    """
    if not len(history.attempts):
        return
    tries = _tries(history, verdict)
    for number, name in enumerate(history.log.names):
        known = tries.get(number, Tries())
        found = Counter(stored[number])
        _check_counts(name, known, found, verdict)
        confirmed = known.surest[Outcome.OK]
        # Only when exactly the confirmed messages are there can the two orders be laid side by side.
        if history.in_order and found == confirmed and known.order != stored[number]:
            moved = sum(a != b for a, b in zip(known.order, stored[number], strict=True))
            verdict.add(Breach.OUT_OF_ORDER, f"{name}: {moved} not where they were published", moved)


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
    """For each idempotency key its surest try. All confirmations of one key must name one id."""
    attempts = history.attempts
    best: dict[str, int] = {}
    for attempt, key in attempts.key.items():
        other = best.setdefault(key, attempt)
        ids = {attempts.id[attempt], attempts.id[other]} - {UNKNOWN}
        if len(ids) > 1:
            verdict.add(Breach.DOUBLED, f"key {key} was given the ids {sorted(ids)}")
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
