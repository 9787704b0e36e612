"""Checks the numbers that one reader got: each expected number once, in ascending order, and no other."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from load.verdict import Breach, Verdict


def check_sequence(who: str, given: Iterable[int], owed: Collection[int], verdict: Verdict) -> None:
    """Check that `given` has exactly the numbers of `owed`, in order."""
    seen = check_given(who, given, set(owed), verdict)
    for number in owed:
        if number not in seen:
            verdict.add(Breach.LOST, f"{who}: {number} did not come")


def check_given(
    who: str, given: Iterable[int], owed: set[int], verdict: Verdict, after: int | None = None
) -> set[int]:
    """Check that `given` has no duplicates, ascends from `after` on, and has only numbers of `owed`. Returns
    its numbers."""
    seen: set[int] = set()
    last = after
    for number in given:
        if number in seen:
            verdict.add(Breach.DOUBLED, f"{who}: {number} again, at {last}")
        elif last is not None and number <= last:
            verdict.add(Breach.OUT_OF_ORDER, f"{who}: {number} after {last}")
        if number not in owed and (after is None or number > after):
            verdict.add(Breach.PHANTOM, f"{who}: {number} is not in the log, or was not asked for")
        seen.add(number)
        last = number if last is None else max(last, number)
    return seen
