"""Publishers, readers and a member that go on whatever happens, and remember all they were told."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from itertools import count

import httpx

CHANNELS = ("a", "b", "c")
WORK = "work"
RETRY_S = 0.05


@dataclass(slots=True)
class Memory:
    """All that anybody was told. `meanings`: every number that an id was seen to stand for."""

    meanings: dict[int, set[int]] = field(default_factory=dict)
    confirmed: dict[int, int] = field(default_factory=dict)
    delivered: dict[int, int] = field(default_factory=dict)
    refused: int = 0

    def note(self, id_: int, number: int) -> None:
        self.meanings.setdefault(id_, set()).add(number)


@dataclass(slots=True)
class Reader:
    """One stream with the cursor that its client keeps."""

    name: str
    channels: tuple[str, ...]
    got: list[int] = field(default_factory=list)
    told: list[tuple[int, int]] = field(default_factory=list)
    goodbyes: list[str] = field(default_factory=list)
    cursor: str | None = None
    began: int | None = None

    def take(self, name: str, id_: str | None, data: str, memory: Memory) -> None:
        """One event."""
        if id_ is not None:
            self.cursor = id_
        said = json.loads(data)
        if not name:
            self.got.append(said["id"])
            memory.note(said["id"], said["data"])
        elif name == "ready" and self.began is None:
            self.began = said["cursor"]
        elif name == "gap":
            assert said["reason"] == "history_changed", f"{self.name}: {said}"
            first, last = said["ids"]
            self.told.append((first, last))
        elif name == "goodbye":
            self.goodbyes.append(said["reason"])


class Crowd:
    """Over the nodes of one service, at random."""

    def __init__(self, urls: list[str]) -> None:
        self.memory = Memory()
        self.readers = [Reader("one", ("a",)), Reader("three", CHANNELS), Reader("all", (">",))]
        self._urls = urls
        self._http = httpx.AsyncClient(timeout=20, limits=httpx.Limits(max_connections=None))
        self._numbers = count()
        self._tasks: list[asyncio.Task[None]] = []
        self._publishing = True

    def url(self) -> str:
        return random.choice(self._urls)

    async def start(self) -> None:
        body = {"channels": [">"], "start": "earliest", "ordering": "none"}
        answer = await self._http.put(f"{self.url()}/v1/subscriptions/{WORK}", json=body)
        answer.raise_for_status()
        self._tasks = [asyncio.create_task(self._read(reader)) for reader in self.readers]
        self._tasks.append(asyncio.create_task(self._work()))
        while any(reader.began is None for reader in self.readers):
            await asyncio.sleep(0.01)
        self._tasks += [asyncio.create_task(self._publish()) for _ in range(3)]

    async def publish_until(self, confirmed: int) -> None:
        """Wait until so many more are confirmed."""
        upto = len(self.memory.confirmed) + confirmed
        while len(self.memory.confirmed) < upto:
            await asyncio.sleep(0.005)

    async def drain(self, patience_s: float = 30.0) -> set[int]:
        """Stop publishing and wait until everybody has everything; the ids that the log holds in the end."""
        self._publishing = False
        await asyncio.sleep(0.5)
        kept = {id_ for channel in CHANNELS for id_ in await self._history(channel)}
        async with asyncio.timeout(patience_s):
            while kept - set(self.memory.delivered) or any(kept - set(r.got) for r in self.readers[1:]):
                await asyncio.sleep(0.1)
        return kept

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()

    async def _history(self, channel: str) -> list[int]:
        headers = {"Accept": "application/x-ndjson"}
        answer = await self._http.get(f"{self.url()}/v1/channels/{channel}/messages", headers=headers)
        if answer.status_code == 404:
            return []
        answer.raise_for_status()
        found = [json.loads(line) for line in answer.text.splitlines()]
        assert [m["seq"] for m in found] == list(range(1, len(found) + 1)), "seq is dense"
        for message in found:
            self.memory.note(message["id"], message["data"])
        return [message["id"] for message in found]

    async def _publish(self) -> None:
        while self._publishing:
            number, channel = next(self._numbers), random.choice(CHANNELS)
            try:
                url = f"{self.url()}/v1/channels/{channel}/messages"
                answer = await self._http.post(url, json={"data": number})
            except httpx.HTTPError:
                answer = None
            if answer is None or answer.status_code != 201:
                self.memory.refused += 1
                await asyncio.sleep(RETRY_S)
                continue
            stored = answer.json()
            self.memory.confirmed[stored["id"]] = number
            self.memory.note(stored["id"], number)

    async def _read(self, reader: Reader) -> None:
        while True:
            headers = {"Last-Event-ID": reader.cursor} if reader.cursor is not None else {}
            parameters = {"channel": list(reader.channels)}
            try:
                url = f"{self.url()}/v1/subscribe"
                async with self._http.stream("GET", url, params=parameters, headers=headers) as answer:
                    if answer.status_code == 200:
                        await self._follow(reader, answer)
            except httpx.HTTPError:
                pass
            await asyncio.sleep(RETRY_S)

    async def _follow(self, reader: Reader, answer: httpx.Response) -> None:
        name, id_, data = "", None, ""
        async for line in answer.aiter_lines():
            key, _, value = line.partition(": ")
            if not line and data:
                reader.take(name, id_, data, self.memory)
            if not line:
                name, id_, data = "", None, ""
            elif key == "event":
                name = value
            elif key == "id":
                id_ = value
            elif key == "data":
                data = value

    async def _work(self) -> None:
        while True:
            try:
                base = f"{self.url()}/v1/subscriptions/{WORK}"
                answer = await self._http.post(f"{base}/pull", json={"max": 50, "wait": 1})
                if answer.status_code != 200:
                    await asyncio.sleep(RETRY_S)
                    continue
                deliveries = answer.json()["deliveries"]
                for delivery in deliveries:
                    message = delivery["message"]
                    self.memory.note(message["id"], message["data"])
                    self.memory.delivered[message["id"]] = self.memory.delivered.get(message["id"], 0) + 1
                if deliveries:
                    await self._http.post(
                        f"{base}/ack", json={"receipts": [d["receipt"] for d in deliveries]}
                    )
            except httpx.HTTPError:
                await asyncio.sleep(RETRY_S)
