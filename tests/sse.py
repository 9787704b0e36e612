"""A plain reader of server-sent events for tests: every block as it came, comments too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

PATIENCE_S = 20.0


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
    """An open stream. `comments` counts comment lines."""

    response: httpx.Response
    comments: int = 0
    _lines: AsyncIterator[str] | None = None
    seen: list[Block] = field(default_factory=list)

    async def block(self) -> Block | None:
        """The next event; None when the stream ended."""
        if self._lines is None:
            self._lines = self.response.aiter_lines()
        async with asyncio.timeout(PATIENCE_S):
            block = Block()
            async for line in self._lines:
                if line.startswith(":"):
                    self.comments += 1
                elif line:
                    name, _, value = line.partition(":")
                    setattr(block, name, value.removeprefix(" "))
                elif block != Block():
                    self.seen.append(block)
                    return block
        return None

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
async def subscribe(url: str, *channels: str, headers: dict[str, str] | None = None, **query: Any) -> Any:
    """Open `/v1/subscribe` and check that it was accepted."""
    parameters: list[tuple[str, Any]] = [("channel", c) for c in channels]
    for name, value in query.items():
        values = value if isinstance(value, list) else [value]
        parameters += [(name.rstrip("_"), str(v)) for v in values]
    async with (
        httpx.AsyncClient(timeout=PATIENCE_S) as client,
        client.stream("GET", f"{url}/v1/subscribe", params=parameters, headers=headers) as response,
    ):
        assert response.status_code == 200, await response.aread()
        yield Stream(response)


async def publish(url: str, channel: str, *data: Any, **members: Any) -> list[Any]:
    """Publish one request a datum; their positions."""
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        positions = []
        for datum in data:
            answer = await client.post(f"/v1/channels/{channel}/messages", json={"data": datum, **members})
            assert answer.status_code in (201, 202), answer.text
            positions.append(answer.json())
        return positions
