"""What publishers were told, and what the log holds in the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

EXAMPLES = 5


class Stored(NamedTuple):
    """A message as history gives it. `number` is the publisher's own."""

    id: int
    seq: int
    number: int


@dataclass(slots=True)
class Books:
    """`confirmed`: number → id, for each publish that was answered 201. `asked`: all numbers ever sent."""

    confirmed: dict[int, int] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Verdict:
    """What was broken. `refused` names the starts that did not come up."""

    refused: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every start came up and every promise held."""
        return not self.refused and not self.broken

    def report(self) -> str:
        """One line, and what was broken below it."""
        shown = [*self.refused, *self.broken[:EXAMPLES]]
        hidden = len(self.broken) - EXAMPLES
        more = [f"  … {hidden:,} more"] if hidden > 0 else []
        line = f"{len(self.refused)} starts refused, {len(self.broken)} promises broken"
        return "\n".join([line, *(f"  {text}" for text in shown), *more])


def check(books: Books, stored: list[Stored], verdict: Verdict) -> None:
    """`stored` is the whole channel, in the order of history."""
    found = {message.number: message.id for message in stored}
    broken = verdict.broken
    for number, message_id in books.confirmed.items():
        if found.get(number) != message_id:
            broken.append(f"lost: {number} was confirmed as {message_id}, the log has {found.get(number)}")
    times = Counter(message.number for message in stored)
    broken += [f"doubled: {number} is stored {count} times" for number, count in times.items() if count > 1]
    broken += [f"phantom: {number} was never published" for number in times.keys() - books.asked]
    if [message.seq for message in stored] != list(range(1, len(stored) + 1)):
        broken.append("holes: seq is not 1, 2, 3, …")
    ids = [message.id for message in stored]
    if ids != sorted(set(ids)):
        broken.append("out of order: ids do not go up")
