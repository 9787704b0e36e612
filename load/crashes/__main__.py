"""`python -m load.crashes`: kills all processes with SIGKILL and restarts at once, in rounds."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from load import archive, drill
from load.api import Api
from load.checker import check
from load.children import kill, tree
from load.crashes.dead import adopt, await_death, reap, zombies
from load.crashes.traffic import publish_and_change, read_all
from load.drill import say
from load.history import History
from load.server import Server
from load.verdict import Breach, Verdict
from load.waiting import PATIENCE_S

WHILE_STARTING = 0.25
"""The share of rounds with a second kill during the start."""
SHORT = "--rounds 3 --seconds 0.5 --seed 8"


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = drill.parser("crashes", __doc__, "", SHORT)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.0, help="of traffic between two kills, at most")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="seconds a start may take")
    drill.add_seed(parser)
    drill.add_keep(parser)
    return parser.parse_args(arguments)


async def play(chosen: argparse.Namespace, home: Path, history: History) -> Verdict:
    """Run all rounds on one home and one port."""
    chance, stop = random.Random(chosen.seed), asyncio.Event()
    server = Server(home, {"workers": str(chosen.workers)})
    api = Api(server.target)
    server.start()
    await server.wait_ready(chosen.patience)
    traffic = asyncio.create_task(publish_and_change(server.target, history, chance, stop))
    refused = ""
    try:
        for number in range(1, chosen.rounds + 1):
            await asyncio.sleep(chance.uniform(0.1, 1.0) * chosen.seconds)
            refused = refused or await _crash(server, chance, number, chosen.patience)
            if refused or traffic.done():
                break
    finally:
        stop.set()
        strange = await traffic
    if refused:
        verdict = Verdict((Breach.DOWN,))
        verdict.add(Breach.DOWN, refused)
        return verdict
    await read_all(api, history)
    server.stop()
    verdict = check(history)
    verdict.told = (Breach.DOWN, *verdict.told)
    for refusal in strange:
        verdict.add(Breach.FAILED, refusal)
    return verdict


async def _crash(server: Server, chance: random.Random, number: int, patience: float) -> str:
    """Kill everything, in some rounds again during the start, and wait until it serves. Returns the error if
    it does not, else an empty text."""
    began = time.monotonic()
    kills = 1 + (chance.random() < WHILE_STARTING)
    for again in range(kills):
        if again:
            await asyncio.sleep(chance.uniform(0.05, 1.5))
        earlier = zombies(os.getpid())
        _kill_all(server)
        server.start()
    try:
        await server.wait_ready(patience)
    except RuntimeError as error:
        return f"round {number}: {error}"
    count = len(zombies(os.getpid()))
    # Only those of earlier rounds are reaped: the lock files name the zombies of this round.
    reap(earlier)
    took = time.monotonic() - began
    say(f"round {number}: {kills} kill(s), ready after {took:.1f} s, {count} zombies")
    return ""


def _kill_all(server: Server) -> None:
    """Kill the launcher, the supervisor, the workers, Redis, Postgres and its children from one list, because
    a process that lived longer would clean up after the others."""
    assert server.child is not None
    victims = tree(server.child.pid)
    if (postgres := server.postgres()) is not None and postgres in victims:
        victims = [postgres, *(pid for pid in victims if pid != postgres)]
    kill(victims)
    await_death(victims)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the drill: every start must succeed, and no confirmed message may be lost."""
    chosen = options(arguments)
    adopt()
    home = drill.home("crashes")
    say(f"seed {chosen.seed}, {chosen.rounds} rounds")
    history = History(chosen.seed, in_order=True)
    verdict = drill.played(lambda: asyncio.run(play(chosen, home, history)))
    archive.write(history, home / "history.jsonl.gz")
    drill.leave(home, f"crashes-{chosen.seed}", verdict, keep=chosen.keep)
    return drill.conclude(verdict)


if __name__ == "__main__":
    sys.exit(main())
