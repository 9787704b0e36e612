"""Publishes a recorded chat while readers follow it and parts of the service are killed; gives a verdict."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from load import archive, drill
from load.api import Api
from load.changers import EVERYTHING, Board, Changer, join
from load.chat import messages, plan
from load.chat.drain import drain
from load.chat.follower import LATEST, Crowd, Follower
from load.chat.websocket_follower import WebSocketFollower
from load.checker import check
from load.children import Child, kill, tree
from load.drill import say
from load.faults import hit
from load.fold import fold_all
from load.history import History
from load.server import LAUNCHER, Server
from load.truth import Truth
from load.verdict import Breach, Verdict
from load.waiting import PATIENCE_S, in_time
from load.wire import Target

ORDER = ("redis", "service", "import", "postgres")
"""The parts that are killed in turn, spread over the run."""
IMPORT_PATIENCE = 30 * PATIENCE_S
CATCH_UP_PATIENCE = 2 * PATIENCE_S
"""Seconds that the import may take with all its restarts, and readers to catch up after it."""
LEAST = 50
"""So many changes each sender makes at least, however short the import is."""


@dataclass(slots=True)
class Chat:
    """One run."""

    options: argparse.Namespace
    home: Path
    server: Server
    history: History
    chance: random.Random
    sizes: Counter[str] = field(default_factory=Counter)
    followers: list[Follower] = field(default_factory=list)
    crowd: Crowd = field(init=False)
    input: Path = field(init=False)
    imports: int = 0
    publisher: Child | None = None
    changers: list[Changer] = field(default_factory=list)
    board: Board = field(init=False)

    async def run(self) -> Verdict:
        """Run everything. Raises RuntimeError and TimeoutError if there is no verdict."""
        options = self.options
        self.input = messages.shortened(options.file, options.limit, self.home)
        self.sizes = messages.announce(self.history, self.input)
        self.history.in_order = True
        self.server.start()
        say(f"seed {options.seed}; service ready after {await self.server.wait_ready():.1f} s")
        await self._open()
        columns = (
            TextColumn("{task.description:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Console(), transient=True) as progress:
            tasks = await self._start_readers(progress)
            await self._publish()
            await self._drain(progress)
            await self._catch_up()
        for follower in self.followers:
            follower.stop()
        await asyncio.gather(*tasks)
        say(f"connections: {_counted(self.crowd.seen)}")
        fold_all(self.history, self.history.readers())
        verdict = check(self.history)
        for strange in self.board.strange:
            verdict.add(Breach.FAILED, strange)
        return verdict

    async def _open(self) -> None:
        """Make the readers' crowd and the senders of changes, each of them with its own key: so a sender is
        told from another, and the service is closed to strangers."""
        options, names = self.options, [f"changer{number}" for number in range(self.options.changers)]
        if names:
            anybody = Api(self.server.target)
            said = await anybody.call("POST", "/v1/keys", {"name": "root", "grants": EVERYTHING})
            self.server.credential = said["key"]
            anybody.close()
        self.crowd = Crowd(self.history, self.server.target, options.mean_life)
        self.board = Board(self.history, self.crowd.ids)
        root = Api(self.server.target)
        for name, key in zip(names, await join(root, names), strict=True):
            api = Api(Target(self.server.target.host, self.server.port, key))
            self.changers.append(Changer(name, api, self.board, random.Random(self.chance.random())))
        root.close()

    async def _start_readers(self, progress: Progress) -> list[asyncio.Task[None]]:
        plans = plan.plan(self.chance, self.sizes, self.options.readers)
        for each in plans:
            cursor = self.history.cursor(each.name, each.patterns, each.start)
            seeded = random.Random(self.chance.random())
            kind = WebSocketFollower if each.over_websocket else Follower
            self.followers.append(kind(self.crowd, cursor, seeded, each.delay))
        tasks = [asyncio.create_task(follower.run()) for follower in self.followers]
        present = [f for f, p in zip(self.followers, plans, strict=True) if p.delay == 0]
        await in_time(asyncio.gather(*(follower.live.wait() for follower in present)))
        deliveries = progress.add_task("deliveries", total=plan.owed_at_least(plans, self.sizes))
        tasks.append(asyncio.create_task(self._show(progress, deliveries)))
        return tasks

    async def _show(self, progress: Progress, deliveries: TaskID) -> None:
        """Update the progress bars until the readers are stopped."""
        stored = progress.add_task("messages", total=sum(self.sizes.values()))
        while self.followers and not self.followers[0].stopping:
            progress.update(deliveries, completed=sum(len(f.cursor.ids) for f in self.followers))
            progress.update(stored, completed=len(self.crowd.texts))
            await asyncio.sleep(0.25)

    async def _publish(self) -> None:
        """Import the file during the faults. The import is run again until it succeeds."""
        started = time.monotonic()
        announced, done = len(self.history.attempts), asyncio.Event()
        changing = [asyncio.create_task(changer.run(done, LEAST)) for changer in self.changers]
        await asyncio.gather(self._storm(), self._import())
        done.set()
        await asyncio.gather(*changing)
        for changer in self.changers:
            changer.api.close()
        for attempt in range(announced):
            self.history.ok(attempt)
        took, total = time.monotonic() - started, sum(self.sizes.values())
        say(f"{total:,} messages published in {took:.1f} s with {self.imports} run(s) of the import")
        say(f"requests with changes: {_counted(self.board.answers) or 'none'}")

    async def _storm(self) -> None:
        """Kill the parts in `ORDER`, once in each round, spread over the progress of the import."""
        steps = [name for _ in range(self.options.rounds) for name in ORDER]
        total = sum(self.sizes.values())
        for number, name in enumerate(steps, 1):
            while (share := len(self.crowd.texts) / total) < number / (len(steps) + 1):
                await asyncio.sleep(0.02)
            self.history.fault(f"{name} killed", True)
            started = time.monotonic()
            if name == "import":
                self._kill_import()
            else:
                await hit(self.server, name, self.chance)
            self.history.fault(f"{name} killed", False)
            say(f"{name} killed with -9 at {share:.0%}, back after {time.monotonic() - started:.1f} s")

    async def _import(self) -> None:
        deadline = time.monotonic() + IMPORT_PATIENCE
        while time.monotonic() < deadline:
            self.imports += 1
            command = [LAUNCHER, "import", str(self.input)]
            child = self.publisher = Child(command, self.home / "import.log", self.server.env).start()
            while child.code() is None:
                await asyncio.sleep(0.05)
            child.stop()
            if child.code() == 0:
                return
            await asyncio.sleep(0.5)
        raise RuntimeError(f"the import does not end:\n{child.tail()}")

    def _kill_import(self) -> None:
        if self.publisher is not None and self.publisher.code() is None:
            kill(tree(self.publisher.pid))

    async def _drain(self, progress: Progress) -> None:
        task = progress.add_task("histories", total=len(self.sizes))
        views = bool(self.changers)
        await drain(self.crowd, sorted(self.sizes), 4, lambda: progress.advance(task), views=views)

    async def _catch_up(self) -> None:
        """Wait until all readers have everything, then a moment longer for messages that should not come."""
        truth = Truth.of(self.history)
        deadline = time.monotonic() + CATCH_UP_PATIENCE
        while time.monotonic() < deadline and any(_is_behind(f, truth) for f in self.followers):
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.5)


def _counted(what: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in sorted(what.items()))


def _is_behind(follower: Follower, truth: Truth) -> bool:
    cursor = follower.cursor
    return cursor.start == LATEST or len(cursor.ids) < len(truth.owed_to(cursor))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    short = "FILE --limit 20000 --readers 50"
    parser = drill.parser("chat", __doc__, "FILE", short, "FILE --seed 7 --rounds 2")
    parser.add_argument("file", type=Path, help="messages, one JSON object a line, gzipped")
    parser.add_argument("--limit", type=int, help="publish only the first so many messages")
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1, help="how often each part is killed")
    parser.add_argument(
        "--changers", type=int, default=8, help="senders that change what is there; 0: the file alone"
    )
    parser.add_argument(
        "--mean-life", type=float, default=6.0, help="mean seconds between a reader's own cuts"
    )
    parser.add_argument("--workers", type=int, default=1, help="worker processes of the service")
    drill.add_seed(parser)
    drill.add_keep(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once and print the verdict."""
    options = _options(arguments)
    home = drill.home("chat")
    server = Server(home, {"workers": str(options.workers)})
    chat = Chat(options, home, server, History(options.seed), random.Random(options.seed))
    started = time.monotonic()
    verdict = drill.played(lambda: uvloop.run(chat.run()))
    server.stop()
    say(f"{time.monotonic() - started:.0f} s in all")
    archive.write(chat.history, home / "history.jsonl.gz")
    drill.leave(home, f"chat-seed{options.seed}", verdict, keep=options.keep)
    return drill.conclude(verdict)


if __name__ == "__main__":
    sys.exit(main())
