"""The lists of clients that the clients of a channel keep, compared with who is there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec

from load.verdict import Breach, Verdict

TOLD = (Breach.PHANTOM, Breach.MISSING, Breach.SLOW)


class Shown(msgspec.Struct):
    """One client: its id, or "" while it is not connected, and its own list, None before it has one."""

    number: int
    client: str
    listed: list[str] | None


class Look(msgspec.Struct):
    """All clients at one moment, and what they have counted so far."""

    counts: dict[str, int]
    shown: list[Shown]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far lists are from the clients that are connected. `phantoms` and `missing` count over all
    lists; `examples` has one line for each wrong list."""

    away: int
    wrong: int
    phantoms: int
    missing: int
    examples: tuple[str, ...] = ()

    @property
    def right(self) -> bool:
        """Whether all are connected, and each list is that of those who are."""
        return not (self.away or self.wrong)

    def __str__(self) -> str:
        within = f"{self.phantoms:,} phantoms, {self.missing:,} missing"
        return f"{self.away} away, {self.wrong} lists wrong: {within}"


def compare(shown: Sequence[Shown], awaited: Collection[int]) -> Difference:
    """Compare each list with the ids of all connected clients. `awaited`: the numbers of those who must be
    there. A client without a list lacks everybody."""
    there = {one.client for one in shown if one.client}
    connected = {one.number for one in shown if one.client}
    phantoms = missing = 0
    examples = []
    for one in shown:
        listed = set(one.listed or ())
        many, few = len(listed - there), len(there - listed)
        if many or few or one.listed is None:
            examples.append(
                f"client {one.number} lists {len(listed)} of {len(there)}: {many} too many, {few} lacking"
            )
        phantoms, missing = phantoms + many, missing + few
    return Difference(len(set(awaited) - connected), len(examples), phantoms, missing, tuple(examples))


def judge(last: Difference, right_after: float | None, within_s: float, what: str) -> Verdict:
    """The verdict on the lists as they were at the last look. `right_after`: the seconds after which every
    look found them right; None if the last did not."""
    verdict = Verdict(TOLD)
    if not last.right or right_after is None or right_after > within_s:
        seen = "not seen right" if right_after is None else f"seen right after {right_after:.1f} s"
        more = f"; {last.examples[0]}" if last.examples else ""
        verdict.add(Breach.SLOW, f"{what}: {seen}: {last}{more}", max(1, last.wrong, last.away))
        verdict.add(Breach.PHANTOM, f"{what}: {last}", last.phantoms)
        verdict.add(Breach.MISSING, f"{what}: {last}", last.missing)
    return verdict
