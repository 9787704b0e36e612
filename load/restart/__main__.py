"""`python -m load.restart`: tests dead letters across a stop of all processes, in rounds."""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence

import uvloop

from load import drill
from load.drill import say
from load.restart.checker import TOLD
from load.restart.plan import Plan, Variant
from load.restart.round import Round
from load.verdict import Verdict
from load.waiting import PATIENCE_S

SHORT = "--rounds 1 --messages 300 --chain 10 --hops 20 --ttl 3 --own-ttl 15"


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = drill.parser("restart", __doc__, "", "--rounds 1 --variants iii --seed 7", SHORT)
    parser.add_argument("--rounds", type=int, default=20, help="of each variant")
    parser.add_argument("--variants", default="i,ii,iii", help="who sets the routes: " + ", ".join(Variant))
    parser.add_argument("--messages", type=int, default=10_000, help="in each of the two of a loop")
    parser.add_argument("--chain", type=int, default=100, help="messages that go down the chain")
    parser.add_argument("--hops", type=int, default=200, help="how long the chain is")
    parser.add_argument("--ttl", type=float, default=5.0, help="seconds a message lives in the loop")
    parser.add_argument("--hop-ttl", type=float, default=0.05, help="seconds it lives in the chain")
    parser.add_argument(
        "--own-ttl", type=float, default=30.0, help="its own, where the routes come late (iii)"
    )
    parser.add_argument("--patience", type=float, default=10 * PATIENCE_S, help="until all have arrived")
    drill.add_seed(parser)
    drill.add_keep(parser)
    chosen = parser.parse_args(arguments)
    chosen.variants = [Variant(name) for name in chosen.variants.split(",")]
    return chosen


def play(chosen: argparse.Namespace, variant: Variant, number: int) -> Verdict | None:
    """Run one round. None: there is no verdict. The home of a round with a breach is kept."""
    home = drill.home("restart")
    plan = Plan(variant, chosen.hops, chosen.ttl, chosen.hop_ttl, chosen.own_ttl)
    chance = random.Random(f"{chosen.seed}/{variant}/{number}")
    one = Round(home, plan, chosen.messages, chosen.chain, chance, chosen.patience)
    started = time.monotonic()
    say(f"{variant} {number}/{chosen.rounds}")
    verdict = drill.played(lambda: uvloop.run(one.run()))
    one.installation.stop()
    if verdict is not None:
        say(f"  {one.figures.line()}; {time.monotonic() - started:.0f} s in all")
        say(f"  {verdict.line()}")
    drill.leave(home, f"restart-{chosen.seed}-{variant}-{number}", verdict, keep=chosen.keep)
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all rounds. A breach in one outweighs a missing verdict in another."""
    chosen = options(arguments)
    total, missing, started = Verdict(TOLD), 0, time.monotonic()
    say(f"seed {chosen.seed}")
    for number in range(1, chosen.rounds + 1):
        for variant in chosen.variants:
            verdict = play(chosen, variant, number)
            if verdict is None:
                missing += 1
            else:
                total.include(verdict, f"{variant} {number}")
    rounds, took = chosen.rounds * len(chosen.variants), time.monotonic() - started
    total.checked = f"{rounds} rounds in {took:.0f} s, {missing} without a verdict, seed {chosen.seed}"
    return drill.conclude(None if missing and total.ok else total)


if __name__ == "__main__":
    sys.exit(main())
