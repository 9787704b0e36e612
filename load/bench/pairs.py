"""`python -m load.bench.pairs CHECKOUT`: whether this checkout is as fast as another, in alternating pairs.

CHECKOUT is usually an earlier commit: `git worktree add --detach ../before COMMIT`. Both services run all the
time and are measured in turn, so that what else the machine does meets both.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

from load import drill
from load.bench import connected, faces, fanout, latency, opening, publish
from load.bench.cost import Cost
from load.bench.noise import Noise
from load.bench.queue import ours
from load.bench.queue.rates import UNORDERED
from load.children import CHECKOUT
from load.drill import say
from load.figure import Figure, UnfitError, quantile, show, verdict_on, versus
from load.server import Server, serving
from load.verdict import NoVerdictError, Verdict

PAIRS = 10
DISTURBED = 0.1
"""The run has no verdict if other programs took more than this share of the machine."""
READERS = 500
MEMBERS = 4
IN_FLIGHT = 64
WORK = replace(UNORDERED, messages=20_000)
MAKE_KEY = ("keys", "create", "bench", "--grant", "publish,subscribe,consume,manage:bench.>")
_NO_GOAL = {"latency p99"}
"""The same code differs from itself by half here: a turn has 20 messages of the slowest hundredth."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of one service measured: values by name, and how many operations it made."""

    values: dict[str, float]
    operations: int


Measure = Callable[[Server, int], Awaitable[Turn]]
"""Measures a service once; the number of the turn, for channels of its own."""


def _confirmed(outcomes: Counter[int] | Counter[str], good: object, name: str, rate: float) -> Turn:
    if set(outcomes) != {good}:
        raise UnfitError(f"publishes were answered {dict(outcomes)}")
    return Turn({name: rate}, sum(outcomes.values()))


async def _publish(server: Server, number: int) -> Turn:
    statuses: Counter[int] = Counter()
    rate = await publish.rate(server.target, 4.0, statuses)
    return _confirmed(statuses, 201, "publish", rate)


async def _websocket(server: Server, number: int) -> Turn:
    outcomes: Counter[str] = Counter()
    rate = await connected.rate(server.target, IN_FLIGHT, 4.0, outcomes)
    return _confirmed(outcomes, "confirmed", "publish over a WebSocket", rate)


async def _fanout(server: Server, number: int) -> Turn:
    burst = await fanout.burst(faces.gapless(server.target), f"bench.fanout.{number}", READERS, 3.0)
    return Turn({"fan-out": burst.rate}, burst.published * burst.readers)


async def _latency(server: Server, number: int) -> Turn:
    board = await latency.measure(faces.gapless(server.target), f"bench.latency.{number}", 4.0)
    values = {f"latency p{share * 100:.0f}": board.quantile(share) for share in (0.5, 0.99)}
    return Turn(values, board.size)


async def _opening(server: Server, number: int) -> Turn:
    took = await opening.measure(faces.gapless(server.target), 4.0, random.Random(number))
    return Turn({"opening p50": quantile(took, 0.5)}, len(took))


class _Pulls:
    """Takes the same messages in each turn, by a subscription of that turn."""

    def __init__(self) -> None:
        self._id_sums: dict[int, int] = {}

    async def measure(self, server: Server, number: int) -> Turn:
        if not number:
            self._id_sums[server.port] = await ours.preload(server, WORK)
        rate, _ = await ours.rate(server, WORK, self._id_sums[server.port], MEMBERS)
        return Turn({"pull and ack": rate}, WORK.messages)


@dataclass(frozen=True, slots=True)
class Kind:
    """What is measured, in which unit, and whether more of it is better."""

    measure: Measure
    unit: str
    more: bool = True


KINDS = {
    "publish": Kind(_publish, "confirmed/s"),
    "websocket": Kind(_websocket, "confirmed/s"),
    "pull": Kind(_Pulls().measure, "acked/s"),
    "fanout": Kind(_fanout, "deliveries/s"),
    "latency": Kind(_latency, "ms", more=False),
    "opening": Kind(_opening, "ms", more=False),
}


Pair = tuple[tuple[Turn, Cost], tuple[Turn, Cost]]
"""One turn of this checkout and one of the other."""


async def compare(kind: Kind, base: Path, pairs: int, *, with_key: bool) -> list[Pair]:
    """Measure both checkouts in turn. Of two equal services, the one that was started first is often slower
    by some percent, so each half of the pairs has services of its own, started in another order. `with_key`:
    the clients of this checkout send an API key."""
    measured: list[Pair] = []
    for order, half in (((0, 1), pairs - pairs // 2), ((1, 0), pairs // 2)):
        if half:
            measured += await _compare(kind, (CHECKOUT, base), order, half, with_key=with_key)
    return measured


async def _compare(
    kind: Kind, checkouts: Sequence[Path], order: Sequence[int], pairs: int, *, with_key: bool
) -> list[Pair]:
    """One more pair than counts; each checkout begins every second pair."""
    measured: list[Pair] = []
    async with AsyncExitStack() as stack:
        servers = {at: await stack.enter_async_context(serving(checkouts[at])) for at in order}
        if with_key:
            servers[0].credential = await asyncio.to_thread(servers[0].command, *MAKE_KEY)
        for number in range(pairs + 1):
            turns: dict[int, tuple[Turn, Cost]] = {}
            for which in (0, 1) if number % 2 else (1, 0):
                cost = Cost(servers[which])
                with cost:
                    turn = await kind.measure(servers[which], number)
                cost.operations = turn.operations
                turns[which] = turn, cost
            if number:  # In the first one both warm up.
                measured.append((turns[0], turns[1]))
                say(f"a pair: {_told(turns[0], kind.unit)}, the other {_told(turns[1], kind.unit)}")
    return measured


def _told(turn: tuple[Turn, Cost], unit: str) -> str:
    values = ", ".join(f"{name} {value:,.2f} {unit}" for name, value in turn[0].values.items())
    return f"{values} ({turn[1]})"


def figures_of(kind: Kind, pairs: Sequence[Pair], speed: float, cpu: float) -> list[Figure]:
    """The medians of the ratios: at least `speed` of the other's, at most `cpu` of its CPU seconds."""
    figures = []
    for name in pairs[0][0][0].values:
        values = [(mine.values[name], base.values[name]) for (mine, _), (base, _) in pairs]
        goal = speed if kind.more else 1 / speed
        if name in _NO_GOAL:
            goal = float("inf")
        figures.append(versus(name, kind.unit, values, goal, _spread(values), kind.more))
    name = figures[0].name
    own = [(mine.service_s, base.service_s) for (_, mine), (_, base) in pairs]
    whole = [(mine.all_s, base.all_s) for (_, mine), (_, base) in pairs]
    return [
        *figures,
        versus(f"{name}, CPU of the service", "s", own, cpu, _spread(own), more=False),
        versus(f"{name}, CPU with databases", "s", whole, cpu, _spread(whole), more=False),
    ]


def _spread(pairs: Sequence[tuple[float, float]]) -> str:
    ratios = sorted(ours / base for ours, base in pairs)
    low, high = ratios[0], ratios[-1]
    return f"median of {len(ratios)} pairs, {low:.3f} to {high:.3f}; exactly {statistics.median(ratios):.3f}"


def parser_of_options() -> argparse.ArgumentParser:
    """The parser of the options."""
    parser = drill.parser(
        "bench.pairs", __doc__, "../before", "../before --only publish --only pull --pairs 4"
    )
    parser.add_argument("base", type=Path, metavar="CHECKOUT", help="the checkout to compare this one with")
    parser.add_argument("--only", action="append", choices=list(KINDS), help="only this one; may be repeated")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"how many pairs; {PAIRS} by default")
    parser.add_argument("--with-key", action="store_true", help="clients of this checkout send an API key")
    parser.add_argument("--speed", type=float, default=0.97, help="the least ratio of speed; 0.97 by default")
    parser.add_argument("--cpu", type=float, default=1.03, help="the highest ratio of CPU; 1.03 by default")
    return parser


def play(options: argparse.Namespace) -> Verdict:
    """Compare the chosen kinds. Raises NoVerdictError if others use the machine, or if CHECKOUT is none."""
    base = options.base.resolve()
    if not (base / "gapless").is_file():
        raise NoVerdictError(f"{options.base} is not a checkout of Gapless")
    figures: list[Figure] = []
    disturbed = []
    for name in options.only or KINDS:
        noise = Noise()
        pairs = uvloop.run(compare(KINDS[name], base, options.pairs, with_key=options.with_key))
        figures += figures_of(KINDS[name], pairs, options.speed, options.cpu)
        share = noise.share()
        disturbed += [name] if share > DISTURBED else []
        say(f"{name}: other programs used {share:.0%} of the machine")
    show(figures)
    verdict = verdict_on(figures)
    if disturbed and not verdict.ok:
        raise NoVerdictError(f"other programs used the machine during {', '.join(disturbed)}: run it idle")
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once."""
    options = parser_of_options().parse_args(arguments)
    return drill.conclude(drill.played(lambda: play(options)))


if __name__ == "__main__":
    sys.exit(main())
