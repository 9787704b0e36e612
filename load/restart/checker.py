"""Checks a world: every published message must have exactly one complete path to an end.

Each message in the log is in an end channel, or died once and has one copy where its route leads. So messages
and dead letters form paths, and each path begins with a published message.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import msgspec

from load.restart.plan import ENDS, Plan
from load.restart.world import Copy, Letter, World
from load.verdict import Breach, Verdict

TOLD = (Breach.LOST, Breach.DOUBLED)


@dataclass(slots=True)
class Check:
    """One check of a world."""

    plan: Plan
    world: World
    verdict: Verdict = field(default_factory=lambda: Verdict(TOLD))
    by_id: dict[int, Copy] = field(default_factory=dict)
    death_of: dict[int, Letter] = field(default_factory=dict)
    copied: set[int] = field(default_factory=set)

    def run(self) -> Verdict:
        """Check dead letters, messages, paths and counts, in this order."""
        self.by_id = {message.id: message for message in self.world.messages}
        for letter in self.world.letters:
            self._letter(letter)
        origins = set(self.world.published.values())
        for message in self.world.messages:
            self._message(message, message.id in origins)
        for name, first in self.world.published.items():
            self._path(name, first)
        self._ends()
        self._books()
        return self.verdict

    def _letter(self, letter: Letter) -> None:
        say = f"{letter.name} ({letter.message_id}) of {letter.subscription}"
        if letter.message_id in self.death_of:
            self.verdict.add(Breach.DOUBLED, f"{say} died twice")
            return
        self.death_of[letter.message_id] = letter
        if letter.reason != "expired" or self.plan.channel(letter.subscription) != letter.channel:
            self.verdict.add(Breach.ASTRAY, f"{say} died in {letter.channel} as {letter.reason}")
        if letter.to_id is None:
            self.verdict.add(Breach.ROUTELESS, f"{say} died and was published nowhere")
            return
        copy = self.by_id.get(letter.to_id)
        if copy is None:
            self.verdict.add(Breach.LOST, f"the copy {letter.to_id} of {say} is not there")
        elif copy.name != letter.name or copy.channel != letter.to_channel:
            self.verdict.add(Breach.ASTRAY, f"{say} was published as {copy.name} in {copy.channel}")
        elif letter.to_channel not in self.plan.routes(letter.subscription):
            self.verdict.add(Breach.ASTRAY, f"{say} was published to {letter.to_channel}")
        if letter.to_id in self.copied:
            self.verdict.add(Breach.DOUBLED, f"{letter.to_id} is the copy of two messages")
        self.copied.add(letter.to_id)

    def _message(self, message: Copy, published: bool) -> None:
        say = f"{message.name} ({message.id}) in {message.channel}"
        if not published and message.id not in self.copied:
            self.verdict.add(Breach.DOUBLED, f"{say} was not published, and is not a copy")
        if published and message.id in self.copied:
            self.verdict.add(Breach.ASTRAY, f"{say} was published, and is a copy")
        died = message.id in self.death_of
        if message.channel in ENDS and died:
            self.verdict.add(Breach.ASTRAY, f"{say} died at the end")
        elif message.channel not in ENDS and not died:
            self.verdict.add(Breach.STUCK, f"{say} did not die")

    def _path(self, name: str, first: int) -> None:
        """Follow one message from its publish to its end."""
        steps: Counter[tuple[str, str]] = Counter()
        at = self.by_id.get(first)
        if at is None:
            self.verdict.add(Breach.LOST, f"{name} ({first}) is not in the log")
            return
        while at.channel not in ENDS:
            letter = self.death_of.get(at.id)
            if letter is None or letter.to_id is None or steps.total() > len(self.world.messages):
                return  # reported already: stuck, without a route, or in a circle of doubled copies
            steps[letter.subscription, letter.channel] += 1
            if letter.hops != steps.total():
                said = f"{name} says {letter.hops} hops at {letter.subscription}"
                self.verdict.add(Breach.JOURNEY, f"{said}, not {steps.total()}")
            copy = self.by_id.get(letter.to_id)
            if copy is None:
                return
            at = copy
        self._journey(at, steps)

    def _journey(self, arrived: Copy, steps: Counter[tuple[str, str]]) -> None:
        told: list[dict[str, Any]] = msgspec.json.decode(arrived.journey or "[]")
        expected = [(*step, "expired", count) for step, count in steps.items()]
        if [(s["subscription"], s["channel"], s["reason"], s["count"]) for s in told] != expected:
            self.verdict.add(Breach.JOURNEY, f"{arrived.name} arrived by {expected} and tells {told}"[:400])
        elif any(s["first_at"] > s["last_at"] for s in told):
            self.verdict.add(Breach.JOURNEY, f"{arrived.name} tells times that run backwards")

    def _ends(self) -> None:
        """Check that the end channels have each name once, and that the API shows the same."""
        for channel in ENDS:
            there = [message for message in self.world.messages if message.channel == channel]
            for name, count in Counter(message.name for message in there).items():
                if count > 1:
                    self.verdict.add(Breach.DOUBLED, f"{name} has arrived {count} times in {channel}")
            if [message.id for message in there] != self.world.arrived.get(channel, []):
                self.verdict.add(Breach.LEDGER, f"the API and the database disagree about {channel}")
        home = {message.name for message in self.world.messages if message.channel in ENDS}
        for name in self.world.published.keys() - home:
            self.verdict.add(Breach.LOST, f"{name} has not arrived")

    def _books(self) -> None:
        letters = Counter(letter.subscription for letter in self.world.letters)
        logged = Counter(message.channel for message in self.world.messages)
        for name in self.plan.names:
            count, died = self.world.counts[name], logged[self.plan.channel(name)]
            told = (count.dead_lettered, count.dead_letters, letters[name], count.lag, count.in_flight)
            if told != (died, died, died, 0, 0):
                self.verdict.add(Breach.LEDGER, f"{name} of {died} messages says {count}")
            listed = self.world.listed.get(name, died)
            if listed != died:
                self.verdict.add(Breach.LEDGER, f"{listed} dead letters of {name} are listed, not {died}")
        expected = {"deliveries": 0, "settled_ahead": 0, "kept": len(self.world.letters)}
        if self.world.rows != expected:
            self.verdict.add(Breach.LEDGER, f"rows are left: {self.world.rows}, not {expected}")


def check(plan: Plan, world: World) -> Verdict:
    """Check a world."""
    return Check(plan, world).run()
