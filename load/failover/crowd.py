"""Publishers, readers and a member that retry after every failure, and record all answers and messages."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from urllib.parse import urlencode

import msgspec

from load.api import Api, RefusedError, UnreachableError
from load.sse import Event, follow
from load.waiting import cancel, until
from load.wire import Target

CHANNELS = ("a", "b", "c")
WORK = "work"
RETRY_S = 0.05
AWAY = (UnreachableError, RefusedError)


@dataclass(slots=True)
class Memory:
    """The record of a run. `meanings`: for each id, all numbers that were seen as its data."""

    meanings: dict[int, set[int]] = field(default_factory=dict)
    confirmed: set[int] = field(default_factory=set)
    worked: set[int] = field(default_factory=set)
    refused: int = 0

    def note(self, id_: int, number: int) -> None:
        self.meanings.setdefault(id_, set()).add(number)


@dataclass(slots=True)
class Reader:
    """One stream with its client's cursor. `whole`: it must get every message that the log kept. `parted`:
    how many it had whenever it was told that the history changed."""

    name: str
    channels: tuple[str, ...]
    whole: bool = True
    got: list[int] = field(default_factory=list)
    told: list[tuple[int, int]] = field(default_factory=list)
    parted: list[int] = field(default_factory=list)
    cursor: str | None = None
    began: int | None = None

    def take(self, memory: Memory, events: list[Event]) -> None:
        """Record the events of one read."""
        for id_, data, name in events:
            if id_ is not None:
                self.cursor = id_.decode()
            body = msgspec.json.decode(data)
            if not name:
                self.got.append(body["id"])
                memory.note(body["id"], body["data"])
            elif name == b"ready" and self.began is None:
                self.began = body["cursor"]
            elif name == b"gap":
                assert body["reason"] == "history_changed", f"{self.name}: {body}"
                first, last = body["ids"]
                self.told.append((first, last))
                self.parted.append(len(self.got))


class Crowd:
    """All clients of a run. Each request goes to a random node."""

    def __init__(self, targets: list[Target]) -> None:
        self.memory = Memory()
        self.readers = [Reader("one", ("a",), whole=False), Reader("three", CHANNELS), Reader("all", (">",))]
        self._apis = [Api(target) for target in targets]
        self._targets = targets
        self._numbers = count()
        self._tasks: list[asyncio.Task[None]] = []
        self._publishing = True

    @property
    def _api(self) -> Api:
        return random.choice(self._apis)

    async def start(self) -> None:
        body = {"channels": [">"], "start": "earliest", "ordering": "none"}
        await self._api.call("PUT", f"/v1/subscriptions/{WORK}", body)
        self._tasks = [asyncio.create_task(self._read(reader)) for reader in self.readers]
        self._tasks.append(asyncio.create_task(self._work()))
        await until(lambda: all(r.began is not None for r in self.readers), "readers follow", every_s=0.01)
        self._tasks += [asyncio.create_task(self._publish()) for _ in range(3)]

    async def publish_until(self, confirmed: int) -> None:
        """Wait until this many more messages are confirmed."""
        upto = len(self.memory.confirmed) + confirmed
        await until(lambda: len(self.memory.confirmed) >= upto, "more are confirmed", every_s=0.005)

    async def drain(self, patience_s: float) -> set[int]:
        """Stop publishing, and wait until all clients have everything. Returns the ids in the log at the
        end."""
        self._publishing = False
        await asyncio.sleep(0.5)
        kept = {id_ for channel in CHANNELS for id_ in await self._history(channel)}
        everybody = [self.memory.worked, *(reader.got for reader in self.readers if reader.whole)]
        deadline = asyncio.get_running_loop().time() + patience_s
        while any(kept - set(got) for got in everybody) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.1)
        return kept

    async def stop(self) -> None:
        for api in self._apis:
            api.close()
        await cancel(*self._tasks)

    async def _history(self, channel: str) -> list[int]:
        try:
            path = f"/v1/channels/{channel}/messages"
            text = await self._api.raw("GET", path, Accept="application/x-ndjson")
        except RefusedError as error:
            if error.status != 404:
                raise
            return []
        found = [msgspec.json.decode(line) for line in text.splitlines()]
        assert [m["seq"] for m in found] == list(range(1, len(found) + 1)), "seq is dense"
        for message in found:
            self.memory.note(message["id"], message["data"])
        return [message["id"] for message in found]

    async def _publish(self) -> None:
        while self._publishing:
            number, channel = next(self._numbers), random.choice(CHANNELS)
            try:
                stored = await self._api.call("POST", f"/v1/channels/{channel}/messages", {"data": number})
            except AWAY:
                self.memory.refused += 1
                await asyncio.sleep(RETRY_S)
                continue
            self.memory.confirmed.add(stored["id"])
            self.memory.note(stored["id"], number)

    async def _read(self, reader: Reader) -> None:
        path = f"/v1/subscribe?{urlencode([('channel', channel) for channel in reader.channels])}"
        while True:
            headers = {"Accept": "text/event-stream"}
            if reader.cursor is not None:
                headers["Last-Event-ID"] = reader.cursor
            await follow(random.choice(self._targets), path, partial(reader.take, self.memory), headers)
            await asyncio.sleep(RETRY_S)

    async def _work(self) -> None:
        base = f"/v1/subscriptions/{WORK}"
        while True:
            api = self._api
            try:
                pulled = await api.call("POST", f"{base}/pull", {"max": 50, "wait": 1})
                for delivery in pulled["deliveries"]:
                    message = delivery["message"]
                    self.memory.note(message["id"], message["data"])
                    self.memory.worked.add(message["id"])
                receipts = [delivery["receipt"] for delivery in pulled["deliveries"]]
                if receipts:
                    await api.call("POST", f"{base}/ack", {"receipts": receipts})
            except AWAY:
                await asyncio.sleep(RETRY_S)
