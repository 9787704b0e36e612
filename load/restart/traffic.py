"""Publishes named messages, each once: a request without an answer is repeated with its idempotency key."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from load.api import Api, UnreachableError

RETRY_S = 0.1
BATCH = 500


@dataclass(slots=True)
class Traffic:
    """The publishes in one namespace. `published`: the id of each message by its name."""

    api: Api
    published: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    """The number of requests that were repeated."""

    async def publish(
        self, channel: str, names: list[str], ttl_s: float | None = None, batch: int = BATCH
    ) -> None:
        """Publish all messages, without a timeout. Raises RefusedError."""
        for start in range(0, len(names), batch):
            await self._batch(channel, names[start : start + batch], ttl_s)

    async def _batch(self, channel: str, names: list[str], ttl_s: float | None) -> None:
        own: dict[str, Any] = {} if ttl_s is None else {"ttl": ttl_s}
        messages = [{"data": {"name": name}, **own} for name in names]
        key = f"{names[0]}-{names[-1]}"
        while True:
            try:
                path = f"/v1/channels/{channel}/messages"
                answer = await self.api.call("POST", path, messages, Idempotency_Key=key)
                break
            except UnreachableError:
                self.repeated += 1
                await asyncio.sleep(RETRY_S)
        self.published.update(zip(names, (m["id"] for m in answer["messages"]), strict=True))
