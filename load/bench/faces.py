"""How to publish to a channel and to follow it, on the service and on Nchan, with the same client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass

from load.sse import MARK, Counter
from load.waiting import in_time, until
from load.wire import Target

CONNECT_AT_ONCE = 200
"""The most connections that are opened at a time, so that no listen queue overflows."""


@dataclass(frozen=True, slots=True)
class Face:
    """The requests and answers of one server.

    `live_mark` comes when a reader follows. `mark` begins the data line of each message. `accepted` are the
    statuses of a successful publish.
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
        """The request that follows a channel, from the message after `last_id` if it is given."""
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


async def open_reader(
    face: Face,
    channel: str,
    last_id: int | None = None,
    slots: AbstractAsyncContextManager[None] | None = None,
) -> tuple[Counter, float]:
    """Open a counting reader. Returns it with the time (`perf_counter`) at which it followed.

    `slots` is held while it connects. Raises ConnectionError if it is refused, and TimeoutError.
    """
    live: asyncio.Future[tuple[bytes, float]] = asyncio.get_running_loop().create_future()
    request = face.subscribe(channel, last_id)

    def on_live(seen: bytes) -> None:
        live.set_result((seen, time.perf_counter()))

    async with slots or nullcontext():
        reader = await face.target.connect(lambda: Counter(request, face.live_mark, on_live, face.mark))
    head, at = await in_time(live)
    if head[9:12] != b"200":
        raise ConnectionError(f"a subscription was answered {head[:80]!r}")
    return reader, at


async def follow(face: Face, channels: list[str], last_ids: list[int] | None = None) -> list[Counter]:
    """Open one counting reader for each entry of `channels`. Returns when all of them follow."""
    slots = asyncio.Semaphore(CONNECT_AT_ONCE)
    ids: Sequence[int | None] = last_ids or [None] * len(channels)
    opening = (open_reader(face, name, last_id, slots) for name, last_id in zip(channels, ids, strict=True))
    return [reader for reader, _ in await asyncio.gather(*opening)]


async def all_delivered(done: Callable[[], bool], patience_s: float) -> float:
    """Wait until `done`, at most `patience_s`, and then as long as a second copy of a message may take.

    Returns the time (`perf_counter`) at which the first wait ended. The caller checks the counts.
    """
    with suppress(RuntimeError):
        await until(done, "all messages are delivered", patience_s, every_s=0.005)
    ended = time.perf_counter()
    await asyncio.sleep(0.3)
    return ended


async def hang_up(readers: list[Counter]) -> None:
    """Close all readers and give the server a moment to notice."""
    for reader in readers:
        reader.close()
    await asyncio.sleep(0.5)
