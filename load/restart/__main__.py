"""`python -m load.restart`: dead letters across a stop of everything, round after round, and the verdict."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import uvloop

from load.children import raise_file_limit
from load.restart.plan import Plan, Variant
from load.restart.round import Round
from load.restart.verdict import Verdict

say = partial(print, flush=True)
RESULTS = Path(__file__).resolve().parent.parent / "results"


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What can be chosen."""
    parser = argparse.ArgumentParser(prog="python -m load.restart", description=__doc__)
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
    parser.add_argument("--patience", type=float, default=600.0, help="seconds until all must have arrived")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--keep", action="store_true", help="keep the homes of good rounds too")
    chosen = parser.parse_args(arguments)
    chosen.variants = [Variant(name) for name in chosen.variants.split(",")]
    return chosen


def play(chosen: argparse.Namespace, variant: Variant, number: int) -> Verdict | None:
    """One round; None: no verdict. What was broken leaves its home behind, under `load/results`."""
    home = Path(tempfile.mkdtemp(prefix="gapless-restart-"))
    plan = Plan(variant, chosen.hops, chosen.ttl, chosen.hop_ttl, chosen.own_ttl)
    chance = random.Random(f"{chosen.seed}/{variant}/{number}")
    one = Round(home, plan, chosen.messages, chosen.chain, chance, chosen.patience, say)
    verdict: Verdict | None = None
    started = time.monotonic()
    say(f"{variant} {number}/{chosen.rounds}")
    try:
        verdict = uvloop.run(one.run())
        say(f"  {one.figures.line()}; {time.monotonic() - started:.0f} s in all")
        say(f"  {verdict.report()}")
    except Exception:  # noqa: BLE001
        # Whatever went wrong with the round itself says nothing about the service.
        say(f"  no verdict: {traceback.format_exc()}")
    finally:
        one.installation.stop()
        if verdict is None or not verdict.ok or chosen.keep:
            RESULTS.mkdir(parents=True, exist_ok=True)
            kept = RESULTS / f"restart-{chosen.seed}-{variant}-{number}-{time.strftime('%H%M%S')}"
            shutil.move(home, kept)
            say(f"  kept in {kept}")
        shutil.rmtree(home, ignore_errors=True)
    return verdict


def main() -> int:
    """0: nothing was broken; 1: something was; 2: no verdict."""
    raise_file_limit()
    chosen = options()
    total, missing, started = Verdict(), 0, time.monotonic()
    say(f"seed {chosen.seed}")
    for number in range(1, chosen.rounds + 1):
        for variant in chosen.variants:
            verdict = play(chosen, variant, number)
            if verdict is None:
                missing += 1
            else:
                total.include(verdict)
    rounds, took = chosen.rounds * len(chosen.variants), time.monotonic() - started
    say(f"{rounds} rounds in {took:.0f} s, {missing} without a verdict, seed {chosen.seed}")
    say(total.report())
    return 1 if not total.ok else 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
