"""Publishes to NATS JetStream with `nats-py` and prints how many publishes a second were acked.

Arguments: the server's URL, publishes in flight, seconds.
"""

# It runs in its own environment, which has the client. The type checker does not see the client.
# mypy: disable-error-code="import-not-found,misc"
from __future__ import annotations

import asyncio
import sys
import time

import nats
import uvloop

CHANNELS = [f"bench.publish.{n}" for n in range(8)]
DATA = b'{"text":"The quick brown fox jumps over the lazy dog, and is confirmed."}'


async def main(url: str, in_flight: int, seconds: float) -> None:
    """Each of `in_flight` tasks publishes one message after another."""
    connection = await nats.connect(url)
    stream = connection.jetstream()
    await stream.add_stream(name="bench", subjects=["bench.publish.*"])
    acked = 0
    started = time.perf_counter()

    async def publish(number: int) -> None:
        nonlocal acked
        while time.perf_counter() < started + seconds:
            await stream.publish(CHANNELS[number % len(CHANNELS)], DATA)
            acked += 1

    await asyncio.gather(*map(publish, range(in_flight)))
    took = time.perf_counter() - started
    stored = (await stream.stream_info("bench")).state.messages
    await connection.close()
    if stored < acked:
        sys.exit(f"{acked} acked, {stored} stored")
    print(acked / took)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
