"""Publishes a recorded chat while readers follow it and parts of the service are killed; gives a verdict.

`python -m load.chat ../shared/data/gitter-chat.jsonl.gz [--limit N] [--seed S]`; exits with 1 when a message
was lost, doubled or out of order, and with 2 when there could be no verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from load import archive, chatlog, crowd
from load.checker import Truth, check
from load.children import Child, kill, raise_file_limit, tree
from load.drain import drain
from load.faults import Storm
from load.follower import LATEST, Crowd, Follower
from load.history import History
from load.server import LAUNCHER, Server
from load.verdict import Verdict

RESULTS = Path(__file__).resolve().parent / "results"
IMPORT_PATIENCE = 1800.0
CATCH_UP_PATIENCE = 120.0
"""Seconds that the import may take with all its restarts, and readers to catch up after it."""


@dataclass(slots=True)
class Chat:
    """One run. `failures` are reasons why there can be no verdict, or why a good one is not enough."""

    options: argparse.Namespace
    console: Console
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

    def __post_init__(self) -> None:
        self.crowd = Crowd(self.history, self.server.target, self.options.mean_life)

    async def run(self) -> Verdict:
        """The whole run; the server is stopped at the end whatever happened."""
        options = self.options
        self.input = chatlog.shortened(options.file, options.limit, self.home)
        self.sizes = chatlog.announce(self.history, self.input)
        self.history.in_order = True
        self.server.start()
        self.console.print(f"seed {options.seed}; service ready after {await self.server.wait_ready():.1f} s")
        with _progress(self.console) as progress:
            tasks = await self._start_readers(progress)
            await self._publish(progress)
            await self._drain(progress)
            await self._catch_up()
        for follower in self.followers:
            follower.stop()
        await asyncio.gather(*tasks)
        return check(self.history)

    async def _start_readers(self, progress: Progress) -> list[asyncio.Task[None]]:
        plans = crowd.plan(self.chance, self.sizes, self.options.readers)
        for each in plans:
            cursor = self.history.cursor(each.name, each.patterns, each.start)
            seeded = random.Random(self.chance.random())
            self.followers.append(Follower(self.crowd, cursor, seeded, each.delay))
        tasks = [asyncio.create_task(follower.run()) for follower in self.followers]
        present = [f for f, p in zip(self.followers, plans, strict=True) if p.delay == 0]
        async with asyncio.timeout(60):
            await asyncio.gather(*(follower.live.wait() for follower in present))
        deliveries = progress.add_task("deliveries", total=crowd.owed_at_least(plans, self.sizes))
        tasks.append(asyncio.create_task(self._show(progress, deliveries)))
        return tasks

    async def _show(self, progress: Progress, deliveries: TaskID) -> None:
        """Keep the bars true until the readers are stopped."""
        messages = progress.add_task("messages", total=sum(self.sizes.values()))
        while self.followers and not self.followers[0].stopping:
            progress.update(deliveries, completed=sum(len(f.cursor.ids) for f in self.followers))
            progress.update(messages, completed=len(self.crowd.texts))
            await asyncio.sleep(0.25)

    async def _publish(self, progress: Progress) -> None:
        """Import the file through every fault; the import is run again until it says it is done."""
        total = sum(self.sizes.values())
        storm = Storm(
            self.server, self.history, lambda: len(self.crowd.texts) / total, self._kill_import,
            rounds=self.options.rounds, say=progress.console.print,
        )  # fmt: skip
        started = time.monotonic()
        faults = asyncio.create_task(storm.run())
        await asyncio.gather(faults, self._import())
        for attempt in range(len(self.history.attempts)):
            self.history.ok(attempt)
        seconds = time.monotonic() - started
        progress.console.print(
            f"{total:,} messages published in {seconds:.1f} s with {self.imports} run(s) of the import"
        )

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
        await drain(self.crowd, sorted(self.sizes), 4, lambda: progress.advance(task))

    async def _catch_up(self) -> None:
        """Wait until no reader is owed anything more, then a moment longer for what should not come."""
        truth = Truth.of(self.history)
        deadline = time.monotonic() + CATCH_UP_PATIENCE
        while time.monotonic() < deadline:
            behind = [f for f in self.followers if _is_behind(f, truth)]
            if not behind:
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.5)


def _is_behind(follower: Follower, truth: Truth) -> bool:
    cursor = follower.cursor
    if cursor.start == LATEST:
        return True
    return len(cursor.ids) < len(truth.owed_to(cursor))


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def keep(chat: Chat, verdict: Verdict | None) -> Path:
    """Keep the history, the verdict and the logs of a run for whoever looks for the cause."""
    folder = RESULTS / f"chat-{time.strftime('%Y%m%d-%H%M%S')}-seed{chat.options.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    archive.write(chat.history, folder / "history.jsonl.gz")
    (folder / "verdict.txt").write_text(verdict.report() + "\n" if verdict else "no verdict\n")
    for log in chat.home.rglob("*.log"):
        shutil.copy(log, folder / log.name)
    return folder


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m load.chat", description=__doc__)
    parser.add_argument("file", type=Path, help="messages, one JSON object a line, gzipped")
    parser.add_argument("--limit", type=int, help="publish only the first so many messages")
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1, help="how often each part is killed")
    parser.add_argument(
        "--mean-life", type=float, default=6.0, help="mean seconds between a reader's own cuts"
    )
    parser.add_argument("--workers", type=int, default=1, help="worker processes of the service")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--keep", action="store_true", help="keep the history of a good run too")
    return parser.parse_args()


def main() -> int:
    """Run once and say how it went."""
    options = _options()
    console = Console()
    raise_file_limit()
    home = Path(tempfile.mkdtemp(prefix="gapless-chat-"))
    server = Server(home, {"workers": str(options.workers)})
    chat = Chat(options, console, home, server, History(options.seed), random.Random(options.seed))
    verdict: Verdict | None = None
    started = time.monotonic()
    try:
        verdict = uvloop.run(chat.run())
    except (RuntimeError, TimeoutError) as error:
        console.print(f"no verdict: {error!r}", style="bold red", markup=False)
    finally:
        server.stop()
    if verdict is None or not verdict.ok or options.keep:
        console.print(f"kept in {keep(chat, verdict)}", markup=False)
    shutil.rmtree(home, ignore_errors=True)
    seen = ", ".join(f"{count:,} {what}" for what, count in sorted(chat.crowd.seen.items()))
    console.print(
        f"connections: {seen}; {time.monotonic() - started:.0f} s in all", markup=False, highlight=False
    )
    if verdict is None:
        return 2
    console.print(verdict.report(), markup=False, highlight=False)
    return verdict.exit_code


if __name__ == "__main__":
    sys.exit(main())
