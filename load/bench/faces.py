"""How to publish to and to follow one channel, on the service and on Nchan: all else is the same client."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from load.sse import MARK, Counter
from load.wire import Target

CONNECT_AT_ONCE = 200
"""So many connections are opened at a time, so that no listen queue overflows."""


@dataclass(frozen=True, slots=True)
class Face:
    """One server's way of saying the same things.

    `live_mark` shows that a reader follows; `mark` is how the data line of each message begins.
    """

    name: str
    target: Target
    publish_path: str
    subscribe_path: str
    live_mark: bytes
    mark: bytes
    accepted: tuple[int, ...]

    def publish(self, channel: str, body: bytes) -> bytes:
        """The request that publishes `body`."""
        return self.target.request("POST", self.publish_path.format(channel=channel), body)

    def subscribe(self, channel: str, last_id: int | None = None) -> bytes:
        """The request that follows a channel, after an id where one is given."""
        headers = {"Accept": "text/event-stream"}
        if last_id is not None:
            headers["Last-Event-ID"] = str(last_id)
        return self.target.request("GET", self.subscribe_path.format(channel=channel), headers=headers)


def gapless(target: Target) -> Face:
    """The service."""
    publish, subscribe = "/v1/channels/{channel}/messages", "/v1/subscribe?channel={channel}"
    return Face("gapless", target, publish, subscribe, b"event: ready", MARK, (201,))


def nchan(target: Target) -> Face:
    """Nchan as `load.bench.peers` configures it. 201: it had subscribers; 202: it had none."""
    publish, subscribe = "/pub?channel={channel}", "/sub?channel={channel}"
    return Face("nchan", target, publish, subscribe, b"\r\n\r\n", b'\ndata: {"data":', (201, 202))


async def follow(face: Face, channels: list[str], last_ids: list[int] | None = None) -> list[Counter]:
    """One counting reader for each entry of `channels`; returns when all of them follow."""
    loop = asyncio.get_running_loop()
    slots = asyncio.Semaphore(CONNECT_AT_ONCE)

    async def one(number: int, channel: str) -> Counter:
        live = loop.create_future()
        request = face.subscribe(channel, last_ids[number] if last_ids else None)
        async with slots:
            _, counter = await loop.create_connection(
                lambda: Counter(request, face.live_mark, live.set_result, face.mark),
                face.target.host,
                face.target.port,
            )
        head: bytes = await asyncio.wait_for(live, 60)
        if head[9:12] != b"200":
            raise ConnectionError(f"a subscription was answered {head[:80]!r}")
        return counter

    return await asyncio.gather(*(one(number, channel) for number, channel in enumerate(channels)))


async def hang_up(readers: list[Counter]) -> None:
    """Close all readers and give the server a moment to notice."""
    for reader in readers:
        reader.close()
    await asyncio.sleep(0.5)
