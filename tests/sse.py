"""A reader of server-sent events for tests: every block as it came, comments too. Load parses them."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from load.sse import Blocks, fields, split
from tests.patience import PATIENCE_S, http_client


@dataclass
class Block:
    """One event: its fields as sent. `retry` is set where the block carried one."""

    event: str = ""
    id: str | None = None
    data: str = ""
    retry: str | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.data)


@dataclass
class Stream:
    """An open stream."""

    response: httpx.Response
    _bytes: AsyncIterator[bytes] | None = None
    _blocks: Blocks = field(default_factory=Blocks)
    _comments: int = 0
    _ready: deque[Block] = field(default_factory=deque)

    async def block(self) -> Block | None:
        """The next event; None when the stream ended."""
        if self._bytes is None:
            self._bytes = self.response.aiter_bytes()
        async with asyncio.timeout(PATIENCE_S):
            while not self._ready:
                data = await anext(self._bytes, None)
                if data is None:
                    return None
                for text in split(self._blocks.feed(data)):
                    self._take(text)
        return self._ready.popleft()

    def _take(self, text: bytes) -> None:
        block = Block()
        for name, value in fields(text):
            if name:
                setattr(block, name.decode(), value.decode())
            else:
                self._comments += 1
        if block != Block():
            self._ready.append(block)

    @property
    def comments(self) -> int:
        """How many comment lines have come, whether or not a block has ended since."""
        return self._comments + sum(not name for name, _ in fields(self._blocks.rest))

    async def until(self, event: str) -> list[Block]:
        """Events up to and with the first one of this name."""
        found = []
        while block := await self.block():
            found.append(block)
            if block.event == event:
                return found
        raise AssertionError(f"the stream ended before {event}: {found}")

    async def messages(self, count: int) -> list[Any]:
        """The next messages, as decoded JSON; named events in between are passed over."""
        found: list[Any] = []
        while len(found) < count:
            block = await self.block()
            assert block is not None, f"the stream ended after {found}"
            if not block.event:
                assert block.id == str(block.json["id"])
                found.append(block.json)
        return found


@asynccontextmanager
async def subscribe(
    url: str, *channels: str, headers: dict[str, str] | None = None, presence: bool = False, **query: Any
) -> Any:
    """Open `/v1/subscribe` and check that it was accepted. Without `presence` it is not told who else
    reads."""
    parameters: list[tuple[str, Any]] = [("channel", c) for c in channels]
    parameters += [] if presence else [("presence", "false")]
    for name, value in query.items():
        values = value if isinstance(value, list) else [value]
        parameters += [(name.rstrip("_"), str(v)) for v in values]
    async with (
        http_client() as client,
        client.stream("GET", f"{url}/v1/subscribe", params=parameters, headers=headers) as response,
    ):
        assert response.status_code == 200, await response.aread()
        yield Stream(response)


async def publish(url: str, channel: str, *data: Any, **members: Any) -> list[Any]:
    """Publish one request a datum; their positions."""
    async with http_client(url) as client:
        positions = []
        for datum in data:
            answer = await client.post(f"/v1/channels/{channel}/messages", json={"data": datum, **members})
            assert answer.status_code in (201, 202), answer.text
            positions.append(answer.json())
        return positions
