"""Several processes that start working at one moment and report what they did."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load.bench.queue.concurrent_start import ADDRESS
from load.children import Child
from load.relay import Streams
from load.waiting import PATIENCE_S

Word = dict[str, Any]


def ignore(number: int, word: Word) -> None:
    """What a crew does with words before the last one, unless told otherwise."""


@dataclass(slots=True)
class Crew:
    """Children that are ready. A word with `done` is a child's last; others go to `hear`."""

    children: list[Child]
    hear: Callable[[int, Word], None] = ignore
    _writers: list[asyncio.StreamWriter] = field(default_factory=list)
    _reports: list[Word] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Listen to a child until it ends."""
        number = -1
        while line := await reader.readline():
            word: Word = json.loads(line)
            if "ready" in word:
                number = len(self._writers)
                self._writers.append(writer)
            elif "done" in word:
                self._reports.append(word)
            else:
                self.hear(number, word)
            self._news.set()

    async def _all(self, found: Sequence[object], what: str, patience: float) -> None:
        deadline = time.monotonic() + patience
        while len(found) < len(self.children):
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await self._news.wait()
            ended = [child for child in self.children if child.code() is not None]
            for child in ended:
                if child.code() != 0:
                    raise RuntimeError(f"{child.command[2:4]} ended with {child.code()}:\n{child.tail()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"not all {what} after {patience:.0f} s:\n{self.children[0].tail()}")

    async def ready(self, patience: float = PATIENCE_S) -> None:
        """Wait until every child is."""
        await self._all(self._writers, "ready", patience)

    def go(self) -> float:
        """Let them work; returns the monotonic time of it."""
        started = time.monotonic()
        for writer in self._writers:
            writer.write(b"go\n")
        return started

    def running(self) -> bool:
        """Whether none of them has ended."""
        return all(child.code() is None for child in self.children)

    def stop(self) -> None:
        """Let them end, those that would not by themselves."""
        for writer in self._writers:
            writer.write(b"stop\n")

    async def reports(self, patience: float) -> list[Word]:
        """What they say at their end, in any order. Raises RuntimeError when one fails or takes too long."""
        await self._all(self._reports, "done", patience)
        return self._reports


@asynccontextmanager
async def crew(
    commands: Sequence[Sequence[str]], hear: Callable[[int, Word], None] = ignore
) -> AsyncIterator[Crew]:
    """Start a child a command and wait until all are ready; at the end of the block none is left."""
    with tempfile.TemporaryDirectory(prefix="gapless-crew-") as folder:
        address = str(Path(folder) / "crew")
        children = [
            Child(command, Path(folder) / f"{number}.log", {ADDRESS: address})
            for number, command in enumerate(commands)
        ]
        made = Crew(children, hear)
        async with Streams() as streams:
            await streams.listen_unix(made.attend, address)
            try:
                for child in children:
                    child.start()
                await made.ready()
                yield made
            finally:
                for child in children:
                    if child.process is not None:
                        await asyncio.to_thread(child.stop, 3.0)
                await streams.served()
