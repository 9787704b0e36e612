"""Readers over SSE and members of queues. Each checks every message on arrival."""

from __future__ import annotations

import asyncio
from urllib.parse import urlencode

import msgspec

from load.api import Api, RefusedError, UnreachableError
from load.patterns import matches
from load.soak.proof import Ordered, Queued
from load.soak.publishers import CHANNELS
from load.sse import Event, follow
from load.wire import Target

STREAMS: tuple[tuple[str, ...], ...] = (
    ("soak.>",),
    ("soak.*.a",),
    ("soak.sql.>",),
    ("soak.rest.a", "soak.sql.b", "soak.sql.c"),
)
QUEUES: tuple[tuple[str, ...], ...] = (("soak.>",), ("soak.rest.a", "soak.sql.a"))
PULL = 1000
AGAIN_S = 0.05
ACK_WAIT_S = 300
ANSWER_S = 240.0
"""A busy machine answers late, which is no breach. This is shorter than a lease, and no member dies: so every
message that is delivered twice is a breach."""


def of(patterns: tuple[str, ...]) -> list[str]:
    """The channels that match one of the patterns."""
    return [channel for channel in CHANNELS if any(matches(pattern, channel) for pattern in patterns)]


class Reader:
    """One stream from the first message on. It reconnects with its cursor if the server ends it."""

    def __init__(self, target: Target, number: int, patterns: tuple[str, ...]) -> None:
        self.patterns = patterns
        self.proof = Ordered(f"reader {number} of {' '.join(patterns)}")
        self.opened = 0
        self.odd: list[str] = []
        self._target = target

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            asked = [("channel", pattern) for pattern in self.patterns]
            path = f"/v1/subscribe?{urlencode([*asked, ('after', str(self.proof.last_id))])}"
            headers = {"Accept": "text/event-stream"}
            if not await follow(self._target, path, self._take, headers, self._answered):
                raise RuntimeError("the service cannot be reached")
            await asyncio.sleep(AGAIN_S)

    def _answered(self, status: int) -> None:
        self.opened += 1
        if status != 200:
            self.odd.append(f"{self.proof.name}: answered {status}")

    def _take(self, events: list[Event]) -> None:
        take = self.proof.take
        for event_id, text, name in events:
            if name or event_id is None:
                if name not in (b"ready", b"goodbye", b"presence"):
                    self.odd.append(f"{self.proof.name}: {name.decode()} {text[:100]!r}")
                continue
            message = msgspec.json.decode(text)
            take(message["id"], message["channel"], message["seq"])


class Queue:
    """A durable subscription, ordered by key, and its members."""

    def __init__(self, target: Target, number: int, patterns: tuple[str, ...]) -> None:
        self.patterns = patterns
        self.proof = Queued(f"queue {number} on {' '.join(patterns)}")
        self.odd: list[str] = []
        self._path = f"/v1/subscriptions/soak-{number}"
        self._api = Api(target)

    async def make(self) -> None:
        """Make the subscription. Call it before anything is published."""
        limits = {"ack_wait": ACK_WAIT_S, "max_in_flight": 20_000}
        wanted = {"channels": list(self.patterns), "start": "earliest", **limits}
        await self._api.call("PUT", self._path, wanted)

    async def work(self) -> None:
        """Run one member, which pulls, checks and acks until cancelled."""
        while True:
            try:
                pulled = await self._api.call(
                    "POST", f"{self._path}/pull", {"max": PULL, "wait": 5}, ANSWER_S
                )
                for delivery in pulled["deliveries"]:
                    message = delivery["message"]
                    self.proof.take(message["channel"], message["seq"], message.get("key"))
                receipts = [delivery["receipt"] for delivery in pulled["deliveries"]]
                if receipts:
                    answer = await self._api.call(
                        "POST", f"{self._path}/ack", {"receipts": receipts}, ANSWER_S
                    )
                    late = [r for r in answer["results"] if r["status"] != "acked"]
                    self.odd += [f"{self.proof.name}: {len(late)} acks: {late[0]}"] if late else []
            except (UnreachableError, RefusedError) as error:
                self.odd.append(f"{self.proof.name}: {error}")
                await asyncio.sleep(0.1)
