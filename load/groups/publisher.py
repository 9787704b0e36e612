"""Publishes at a steady rate, and counts how many messages each subscription has at least and at most."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from load.api import Api, RefusedError, UnreachableError
from load.groups import plan
from load.groups.history import Group, Publish
from load.history import Outcome
from load.patterns import matches_any

IN_FLIGHT = 50
"""The most publishes without an answer at a time. At this limit the rate falls."""


@dataclass(slots=True)
class Publisher:
    """The publishers of a storm. `asked` and `confirmed` count messages by channel, without refused ones."""

    api: Api
    chance: random.Random
    rate: float
    tries: list[Publish] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    confirmed: Counter[str] = field(default_factory=Counter)
    numbers: int = 0

    async def run(self, until: asyncio.Event) -> None:
        """Publish until the event `until` is set. Returns when all requests have ended."""
        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = set()
        due = loop.time()
        while not until.is_set():
            due = max(due + self.chance.expovariate(self.rate), loop.time() - 1)
            await asyncio.sleep(due - loop.time())
            if len(tasks) >= IN_FLIGHT:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.create_task(self._one())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    async def _one(self) -> None:
        chance = self.chance
        self.numbers += 1
        number = self.numbers
        channel = chance.choices(list(plan.WEIGHTS), list(plan.WEIGHTS.values()))[0]
        body: dict[str, Any] = {"data": {"n": number, "poison": chance.random() < plan.POISON}}
        if chance.random() > plan.KEYLESS:
            body["key"] = f"k{chance.randrange(plan.KEYS)}"
        if chance.random() < plan.OWN_TTL:
            body["ttl"] = plan.OWN_TTL_S
        self.asked[channel] += 1
        try:
            said = await self.api.call("POST", f"/v1/channels/{channel}/messages", body)
        except UnreachableError:
            self.tries.append(Publish(number, channel, Outcome.INFO))
        except RefusedError:
            self.asked[channel] -= 1
            self.tries.append(Publish(number, channel, Outcome.FAIL))
        else:
            self.confirmed[channel] += 1
            self.tries.append(Publish(number, channel, Outcome.OK, said["id"]))

    def at_least(self, group: Group) -> int:
        """The number of messages that this subscription certainly has."""
        return sum(n for channel, n in self.confirmed.items() if matches_any(group.channels, channel))

    def at_most(self, group: Group) -> int:
        """The number of messages that this subscription can have at most."""
        return sum(n for channel, n in self.asked.items() if matches_any(group.channels, channel))
