"""`python -m load.presence`: the lists of clients that official clients keep, while a worker is killed.

Clients of npm `centrifuge`, with its own delays, connect to a service with two workers. All are in one
process, and subscribe to one channel with its joins and leaves. Each keeps its own list as that client's
users do: it asks for presence when it is subscribed, and again each time, and applies joins and leaves. In
each round one worker is killed with -9, the one that has run longest, and some clients leave for good at the
same time. Within 30 s the list of every client must be exactly the ids with which clients are connected, by
their own `connected` events, and must stay so. For the next round as many clients come as have left.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from load import drill, install
from load.children import die_with_parent, kill, stat_of
from load.drill import say
from load.faults import workers
from load.presence.lists import TOLD, Difference, Look, compare, judge
from load.server import Server, serving
from load.verdict import NoVerdictError, Verdict
from load.waiting import in_time, until

CLIENTS_PROGRAM = Path(__file__).resolve().parent / "clients.mjs"
NPM = ("centrifuge", "ws")
CHANNEL = "presence.everyone"
WITHIN_S = 30.0
STEADY_S = 2.0
"""Before a round the lists must be right at every look for so long. In a round they are looked at for the
whole time, and count as right from the moment on after which every look found them right."""
LOOK_S = 0.4
SAY_EVERY_S = 2.0
LONGEST_LINE = 256 * 2**20
DISTURBED_S = 5.0
"""Looks that are so far apart say nothing about the service, unless all is right nevertheless."""
MOST = 1000
"""With more clients on a channel only their number is told."""
STARTED = 19
"""The place of the time of its start in the `stat_of` a process."""


@dataclass(slots=True)
class Crowd:
    """The process of the clients. `numbers` are those who are to be there."""

    process: asyncio.subprocess.Process
    numbers: set[int] = field(default_factory=set)
    _next: int = 0

    def come(self, count: int) -> None:
        """So many new clients connect."""
        new = list(range(self._next, self._next + count))
        self._next += count
        self.numbers |= set(new)
        self._send({"come": new})

    def go(self, numbers: Sequence[int]) -> None:
        """These clients leave for good."""
        self.numbers -= set(numbers)
        self._send({"go": numbers})

    async def look(self) -> Look:
        """All clients as they are now."""
        self._send({"look": True})
        assert self.process.stdout is not None, "it is a pipe"
        line = await in_time(self.process.stdout.readline())
        if not line:
            raise RuntimeError("the process of the clients has ended")
        return msgspec.json.decode(line, type=Look)

    def _send(self, command: dict[str, object]) -> None:
        assert self.process.stdin is not None, "it is a pipe"
        self.process.stdin.write(msgspec.json.encode(command) + b"\n")


@asynccontextmanager
async def gathered(server: Server, modules: Path) -> AsyncIterator[Crowd]:
    """A process for clients, until the block ends."""
    command = [shutil.which("node") or "node", str(CLIENTS_PROGRAM)]
    address = f"ws://{server.target.host}:{server.target.port}/v1/ws"
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, address, str(modules), CHANNEL,
        stdin=pipe, stdout=pipe, limit=LONGEST_LINE, preexec_fn=die_with_parent,
    )  # fmt: skip
    try:
        yield Crowd(process)
    finally:
        kill([process.pid])
        await process.wait()


@dataclass(slots=True)
class Watch:
    """What was seen since an event: the largest differences, since when all are back and right, and how far
    apart looks were."""

    began: float = field(default_factory=time.monotonic)
    phantoms: int = 0
    missing: int = 0
    right_after: float | None = None
    back_after: float | None = None
    last: Difference = field(default_factory=lambda: Difference(0, 0, 0, 0))
    apart_s: float = 0.0
    _looked: float = 0.0
    _said: float = 0.0

    def see(self, found: Difference) -> None:
        """One more look."""
        passed = self.passed
        self.apart_s, self._looked = max(self.apart_s, passed - self._looked), passed
        self.phantoms, self.missing = max(self.phantoms, found.phantoms), max(self.missing, found.missing)
        self.back_after = None if found.away else self.back_after or passed
        self.right_after = (self.right_after or passed) if found.right else None
        self.last = found
        if passed - self._said >= SAY_EVERY_S:
            self._said = passed
            say(f"  {passed:4.1f} s: {found}")

    @property
    def passed(self) -> float:
        """The seconds since the event."""
        return time.monotonic() - self.began

    def steady(self, seconds: float) -> bool:
        """Whether the lists are right for so long."""
        return self.right_after is not None and self.passed - self.right_after >= seconds


def judged(watch: Watch, what: str) -> Verdict:
    """The verdict on what was seen. Raises NoVerdictError if it is bad, and the machine was disturbed."""
    verdict = judge(watch.last, watch.right_after, WITHIN_S, what)
    if not verdict.ok and watch.apart_s > DISTURBED_S:
        raise NoVerdictError(f"{verdict.report()}\n{what}: looks were up to {watch.apart_s:.1f} s apart")
    return verdict


async def watched(crowd: Crowd, steady_s: float = WITHIN_S) -> Watch:
    """Look for `WITHIN_S`, or until the lists are right for `steady_s`."""
    watch = Watch()
    while watch.passed < WITHIN_S and not watch.steady(steady_s):
        watch.see(compare((await crowd.look()).shown, crowd.numbers))
        await asyncio.sleep(LOOK_S)
    return watch


def oldest(server: Server) -> int:
    """The worker that has run longest."""
    return min(workers(server), key=lambda pid: int(stat_of(pid)[STARTED]))


async def kill_one(server: Server, crowd: Crowd, leaving: Sequence[int], what: str) -> Verdict:
    """One round: kill a worker, let clients leave, and judge the lists."""
    before, present, victim = await crowd.look(), len(crowd.numbers), oldest(server)
    kill([victim])
    crowd.go(leaving)
    watch = await watched(crowd)
    counts = (await crowd.look()).counts
    seen = {name: count - before.counts[name] for name, count in counts.items()}
    cut = seen["cuts"] - len(leaving)
    if cut <= 0:
        raise NoVerdictError(f"{what}: the worker that was killed had no clients")
    back = "not all back" if watch.back_after is None else f"all back after {watch.back_after:.1f} s"
    right = "not all right" if watch.right_after is None else f"all right after {watch.right_after:.1f} s"
    say(
        f"{what}: worker {victim} killed; of {present} clients {len(leaving)} left, and {cut} others were cut"
        f" off; {back}, {right}; on the way up to {watch.phantoms:,} phantoms and {watch.missing:,} missing,"
        f" over all lists; {seen['joins']:,} joins and {seen['leaves']:,} leaves told, {seen['asked']}"
        f" questions, {seen['refused']} refused; looks up to {watch.apart_s:.1f} s apart"
    )
    return judged(watch, what)


async def run(options: argparse.Namespace, modules: Path) -> Verdict:
    """All rounds on one service."""
    chance, verdict = random.Random(options.seed), Verdict(TOLD)
    verdict.checked = f"{options.clients} clients, {options.rounds} rounds, seed {options.seed}"
    async with serving(workers="2") as server, gathered(server, modules) as crowd:
        for number in range(1, options.rounds + 1):
            await until(lambda: len(workers(server)) == 2, "two workers run")
            crowd.come(options.clients - len(crowd.numbers))
            watch = await watched(crowd, STEADY_S)
            if watch.right_after is not None:
                said = f"{len(crowd.numbers)} clients, all lists right after {watch.right_after:.1f} s"
                say(f"round {number}: {said}")
            verdict.include(judged(watch, f"before round {number}"))
            leaving = chance.sample(sorted(crowd.numbers), options.leaving)
            verdict.include(await kill_one(server, crowd, leaving, f"round {number}"))
    return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Install the client, and run once."""
    parser = drill.parser("presence", __doc__, "", "--rounds 3", "--clients 60 --leaving 12 --seed 7")
    parser.add_argument("--clients", type=int, default=300, help="at the start of each round (300)")
    parser.add_argument(
        "--leaving", type=int, default=60, help="clients that leave for good in each round (60)"
    )
    parser.add_argument("--rounds", type=int, default=1, help="a worker is killed in each (1)")
    drill.add_seed(parser)
    options = parser.parse_args(arguments)
    if not 0 <= options.leaving < options.clients <= MOST:
        parser.error(f"--leaving is below --clients, which is at most {MOST}")

    def play() -> Verdict:
        return asyncio.run(run(options, install.npm("clients", NPM)))

    return drill.conclude(drill.played(play))


if __name__ == "__main__":
    sys.exit(main())
