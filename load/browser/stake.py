"""What a foreign page could damage or read: a channel with a secret, and a queue on it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from load.api import Api, RefusedError
from load.server import Server

MESSAGES = 10
MARK = "top-secret"
_VOLATILE = ("oldest_unacked_seconds",)


@dataclass(frozen=True, slots=True)
class Stake:
    """Channel `secret.<name>` and queue `q.<name>` of one service."""

    server: Server
    name: str

    async def lay(self) -> None:
        """Make both, with ten messages."""
        await self._ask("PUT", f"/v1/subscriptions/q.{self.name}", {"channels": [f"secret.{self.name}"]})
        for n in range(MESSAGES):
            await self._ask("POST", f"/v1/channels/secret.{self.name}/messages", {"data": f"{MARK} {n}"})

    async def state(self) -> dict[str, Any]:
        """Everything that a request could change, except the attempts, which only a lease shows."""
        queue = await self._ask("GET", f"/v1/subscriptions/q.{self.name}")
        for name in _VOLATILE:
            queue.get("stats", {}).pop(name, None)
        return {
            "the queue": queue,
            "channels": await self._ask("GET", "/v1/channels?limit=1000"),
            "definitions": await self._ask("GET", "/v1/definitions"),
            "dead letters": await self._ask("GET", "/v1/dead-letters"),
        }

    async def attempts(self) -> list[int]:
        """Lease all messages. Returns their attempts, this lease included."""
        path = f"/v1/subscriptions/q.{self.name}/pull"
        pulled = await self._ask("POST", path, {"max": 100, "wait": 2})
        return [delivery["attempt"] for delivery in pulled.get("deliveries", [])]

    async def refused(self) -> int:
        """How many requests the service refused by its rules for browsers."""
        await asyncio.sleep(1.5)  # the metric is updated once a second
        answer = await self.server.get("/metrics")
        lines = answer.body.decode().splitlines() if answer is not None else []
        codes = ("host_not_allowed", "origin_not_allowed")
        found = [line for line in lines if line.startswith("gapless_requests_refused{")]
        return sum(int(float(line.split()[-1])) for line in found if any(code in line for code in codes))

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        api = Api(self.server.target)
        try:
            return await api.call(method, path, body) or {}
        except RefusedError as error:
            return {"refused": error.status}  # an attack may have deleted it
        finally:
            api.close()
