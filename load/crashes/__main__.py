"""`python -m load.crashes`: kill -9 of everything and a start at once, round after round, and the verdict."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from load.children import kill, tree
from load.crashes.books import Books, Verdict, check
from load.crashes.dead import adopt, await_death, bury, zombies
from load.crashes.traffic import publish, read_all
from load.server import Server

say = partial(print, flush=True)
RESULTS = Path(__file__).resolve().parent.parent / "results"
WHILE_STARTING = 0.25
"""Of the kills, so many come while it still starts."""


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What can be chosen."""
    parser = argparse.ArgumentParser(prog="python -m load.crashes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="of traffic between two kills, at most")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds a start may take")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    return parser.parse_args(arguments)


async def play(chosen: argparse.Namespace, home: Path, verdict: Verdict) -> None:
    """All rounds on one home and one port."""
    chance, books, stop = random.Random(chosen.seed), Books(), asyncio.Event()
    server = Server(home, {"workers": str(chosen.workers)})
    server.start()
    await server.wait_ready(chosen.patience)
    traffic = asyncio.create_task(publish(server, books, stop))
    try:
        for number in range(1, chosen.rounds + 1):
            await asyncio.sleep(chance.uniform(0.1, 1.0) * chosen.seconds)
            await _crash(server, chance, number, chosen.patience)
            verdict.broken += [f"round {number}: {traffic.exception()}"] if traffic.done() else []
    except RuntimeError as error:
        verdict.refused.append(str(error))
        return
    finally:
        stop.set()
        await traffic
    stored = await read_all(server)
    check(books, stored, verdict)
    say(f"{len(books.confirmed):,} messages confirmed, {len(stored):,} in the log")
    server.stop()


async def _crash(server: Server, chance: random.Random, number: int, patience: float) -> None:
    """Kill everything, a second time on the way up in some rounds, and wait until it serves. Raises
    RuntimeError with what it said when it does not."""
    began = time.monotonic()
    kills = 1 + (chance.random() < WHILE_STARTING)
    for again in range(kills):
        if again:
            await asyncio.sleep(chance.uniform(0.05, 1.5))
        buried = zombies(os.getpid())
        _kill_all(server)
        server.start()
    try:
        await server.wait_ready(patience)
    except RuntimeError as error:
        raise RuntimeError(f"round {number}: {error}") from error
    unburied = len(zombies(os.getpid()))
    # Those of earlier rounds only: the lock files name the dead of this one.
    bury(buried)
    took = time.monotonic() - began
    say(f"round {number}: {kills} kill(s), ready after {took:.1f} s, {unburied} not buried")


def _kill_all(server: Server) -> None:
    """The launcher, the supervisor, the workers, Redis, Postgres and its children, with one list: whoever is
    spared for a moment would clear up."""
    assert server.child is not None
    victims = tree(server.child.pid)
    if (postgres := server.postgres()) is not None and postgres in victims:
        victims = [postgres, *(pid for pid in victims if pid != postgres)]
    kill(victims)
    await_death(victims)


def main() -> int:
    """0: every start came up and nothing was lost. 1: not so. 2: no verdict."""
    chosen = options()
    adopt()
    home = Path(tempfile.mkdtemp(prefix="gapless-crashes-"))
    verdict = Verdict()
    say(f"seed {chosen.seed}, {chosen.rounds} rounds")
    try:
        asyncio.run(play(chosen, home, verdict))
    except Exception:  # noqa: BLE001 (a run that broke by itself has no verdict, and says why)
        traceback.print_exc()
        return 2
    finally:
        if verdict.ok:
            shutil.rmtree(home, ignore_errors=True)
        else:
            kept = RESULTS / f"crashes-{chosen.seed}"
            shutil.rmtree(kept, ignore_errors=True)
            RESULTS.mkdir(exist_ok=True)
            shutil.move(home, kept)
            say(f"the home is kept in {kept}")
    say(verdict.report())
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    sys.exit(main())
