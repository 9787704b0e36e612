"""A client of durable subscriptions for tests: plain requests, checked answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.patience import eventually, http_client
from tests.sse import Stream

WAIT_S = 30
"""The longest that a pull may wait. What is to wake it comes while it waits."""
Delivery = dict[str, Any]


class Host:
    """One service, and requests to it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = http_client(url)

    async def __aenter__(self) -> Host:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def ask(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        """The answer's JSON, which must come with this status."""
        answer = await self.http.request(method, path, **more)
        assert answer.status_code == status, (answer.status_code, answer.text)
        return answer.json() if answer.content else None

    async def publish(self, channel: str, *data: Any, **members: Any) -> list[Any]:
        """All in one request; their positions."""
        path = f"/v1/channels/{channel}/messages"
        body = [{"data": datum, **members} for datum in data]
        messages: list[Any] = (await self.ask("POST", path, 201, json=body))["messages"]
        return messages

    async def subscribe(self, name: str, *channels: str, **definition: Any) -> Queue:
        """Make a subscription; of a channel of its own name unless told otherwise."""
        body = {"channels": channels or (name,), "start": "earliest", **definition}
        await self.ask("PUT", f"/v1/subscriptions/{name}", 201, json=body)
        return Queue(self, name)

    async def letters(self, **which: Any) -> list[Any]:
        """Dead letters."""
        page = await self.ask("GET", "/v1/dead-letters", params={"limit": 1000, **which})
        letters: list[Any] = page["dead_letters"]
        return letters

    async def metric(self, name: str) -> float:
        """A metric's value; 0 while there is none."""
        lines = (await self.http.get("/metrics")).text.splitlines()
        return next((float(line.split()[-1]) for line in lines if line.startswith(f"{name} ")), 0.0)


class Queue:
    """One subscription as one host serves it."""

    def __init__(self, host: Host, name: str) -> None:
        self.host = host
        self.name = name
        self.path = f"/v1/subscriptions/{name}"

    def at(self, host: Host) -> Queue:
        """The same as another host serves it."""
        return Queue(host, self.name)

    async def pull(self, count: int = 1, wait: float = 0) -> list[Delivery]:
        """At most `count` deliveries."""
        answer = await self.host.ask("POST", f"{self.path}/pull", json={"max": count, "wait": wait})
        deliveries: list[Delivery] = answer["deliveries"]
        return deliveries

    async def pull_gaps(self, **asked: Any) -> tuple[list[Delivery], list[Any] | None]:
        """As `pull`, with what the answer says was lost; None: it says nothing of it."""
        answer = await self.host.ask("POST", f"{self.path}/pull", json=asked)
        return answer["deliveries"], answer.get("gaps")

    async def come(self, count: int = 1) -> list[Delivery]:
        """At most `count` deliveries, once there is one."""
        found: list[Delivery] = await eventually(lambda: self.pull(count, WAIT_S))
        return found

    async def take(self, count: int) -> list[Delivery]:
        """Exactly so many, however long they take to come."""
        taken: list[Delivery] = []
        while len(taken) < count:
            taken += await self.come(min(count - len(taken), 1000))
        return taken

    async def _settle(self, verb: str, deliveries: Sequence[Delivery], **how: Any) -> list[Any]:
        results: list[Any] = []
        for at in range(0, len(deliveries), 1000):
            receipts = [delivery["receipt"] for delivery in deliveries[at : at + 1000]]
            answer = await self.host.ask("POST", f"{self.path}/{verb}", json={"receipts": receipts, **how})
            assert [result["receipt"] for result in answer["results"]] == receipts
            results += answer["results"]
        return results

    async def ack(self, *deliveries: Delivery) -> list[str]:
        return [result["status"] for result in await self._settle("ack", deliveries)]

    async def nack(self, *deliveries: Delivery, **how: Any) -> list[str]:
        return [result["status"] for result in await self._settle("nack", deliveries, **how)]

    async def release(self, *deliveries: Delivery, **how: Any) -> list[str]:
        return [result["status"] for result in await self._settle("release", deliveries, **how)]

    async def extend(self, *deliveries: Delivery, **how: Any) -> list[Any]:
        return await self._settle("extend", deliveries, **how)

    async def pause(self, paused: bool) -> None:
        await self.host.ask("POST", f"{self.path}/{'pause' if paused else 'resume'}")

    async def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = (await self.host.ask("GET", self.path))["stats"]
        return stats

    @asynccontextmanager
    async def consume(self, **query: Any) -> AsyncIterator[Stream]:
        """A stream of deliveries, on a connection of its own."""
        async with (
            http_client(self.host.url) as http,
            http.stream("GET", f"{self.path}/consume", params=query) as response,
        ):
            assert response.status_code == 200, await response.aread()
            yield Stream(response)


async def deliveries(stream: Stream, count: int) -> list[Delivery]:
    """The next deliveries of a stream."""
    found: list[Delivery] = []
    while len(found) < count:
        block = await stream.block()
        assert block is not None, f"the stream ended after {found}"
        assert (block.event, block.id) == ("delivery", None)
        found.append(block.json)
    return found


def data(taken: Sequence[Delivery]) -> list[Any]:
    """What was published, in the order of delivery."""
    return [delivery["message"]["data"] for delivery in taken]


def attempts(taken: Sequence[Delivery]) -> list[int]:
    return [delivery["attempt"] for delivery in taken]
