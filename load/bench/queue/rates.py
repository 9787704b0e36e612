"""Consume-and-ack throughput against the job queues of PyPI, and against the bare statements."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from load.bench.cost import Cost
from load.bench.queue import bare, ours
from load.bench.queue.ours import Work
from load.bench.queue.rivals import PACKAGES, PGQUEUER, PLACE, PROCRASTINATE, VERSIONS
from load.drill import say
from load.figure import Figure, versus
from load.install import pypi
from load.server import Server, serving

MEMBERS = (1, 4, 16)
GOAL_RIVAL = 3.0
GOAL_BARE = 0.5
NO_GOAL = float("inf")

UNORDERED = Work("no order", "none", 60_000)
OWN_KEYS = Work("own keys", "key", 60_000)
HUNDRED = Work("100 keys", "key", 20_000, keys=100)
WORKS = (UNORDERED, OWN_KEYS, HUNDRED)

Rates = dict[tuple[str, int], list[float]]
"""Rates of each round by who it was and with how many members; the bare loop has 0."""


Costs = dict[tuple[str, int], Cost]
"""What our members spent, by the same."""


async def measure(server: Server, rounds: int, share: float) -> tuple[Rates, Costs]:
    """All sides in turn, so often; `share` of the full number of messages and jobs."""
    works = [replace(work, messages=int(work.messages * share)) for work in WORKS]
    sums = {work.channel: await ours.preload(server, work) for work in {w.channel: w for w in works}.values()}
    rivals = [await rival.prepared(server, int(rival.jobs * share)) for rival in (PGQUEUER, PROCRASTINATE)]
    session = await server.connect()
    rates: Rates = defaultdict(list)
    costs: Costs = {(work.name, members): Cost(server) for work in works for members in MEMBERS}

    def note(name: str, members: int, rate: float, batch: float = 0) -> None:
        rates[name, members].append(rate)
        size = f" in batches of {batch:.0f}" if batch else ""
        say(f"queue, {name}, {f'{members} members' if members else 'bare SQL'}: {rate:,.0f}/s{size}")

    for _ in range(rounds):
        for work in works:
            name = await ours.subscribe(server, work.channel, work.ordering)
            note(work.name, 0, await bare.rate(session, name, work.messages))
            await ours.settle_up(server, name, work.messages)
        for members in MEMBERS:
            for work in works:
                cost = costs[work.name, members]
                with cost:
                    outcome = await ours.rate(server, work, sums[work.channel], members)
                cost.operations += work.messages
                note(work.name, members, *outcome)
            for rival in rivals:
                note(rival.name, members, await rival.rate(server, members))
    await session.close()
    return rates, costs


def figures(rates: Rates, costs: Costs, checked: str) -> list[Figure]:
    """What the rounds amount to: against each rival with as many members, and against the bare loop."""
    made = []
    for members in MEMBERS:
        mine = rates[UNORDERED.name, members]
        for rival in (PGQUEUER, PROCRASTINATE):
            pairs = list(zip(mine, rates[rival.name, members], strict=True))
            name, cost = f"queue, {members}, {rival.name}", costs.get((UNORDERED.name, members), "")
            made.append(versus(name, "acked/s", pairs, GOAL_RIVAL, checked, cost=cost))
    for work in WORKS:
        base = rates[work.name, 0]
        best = [max(rates[work.name, members][n] for members in MEMBERS) for n in range(len(base))]
        goal = GOAL_BARE if work is UNORDERED else NO_GOAL
        made.append(_against_bare(f"queue, {work.name}, best", best, base, goal))
        made += [
            _against_bare(f"queue, {work.name}, {members}", rates[work.name, members], base, NO_GOAL)
            for members in MEMBERS
        ]
    return made


def _against_bare(name: str, mine: list[float], base: list[float], goal: float) -> Figure:
    checked = "against one bare loop" if goal < NO_GOAL else "against one bare loop; for comparison"
    return versus(name, "acked/s", list(zip(mine, base, strict=True)), goal, checked, more=goal < NO_GOAL)


async def run(short: bool) -> list[Figure]:
    """Rounds in turn; each side must have completed exactly what it was given, by its own tables."""
    versions = pypi(PLACE, PACKAGES, VERSIONS)
    async with serving() as server:
        rates, costs = await measure(server, 1 if short else 3, 0.25 if short else 1.0)
    return figures(rates, costs, f"all completed; {versions}")
