"""Facts about Redis for `gapless doctor`, which judges them elsewhere."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

OLDEST_MAJOR = 7
TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """Facts about a Redis. `product`: its name and version. `heard`: a message published on one connection
    arrived on another."""

    product: str
    major: int
    round_trip_s: float
    heard: bool


async def examine(url: str) -> RedisFacts:
    """The facts about the Redis at `url`. Raises `ConnectionError` with a readable text, and `ValueError` for
    an invalid URL."""
    client = Redis.from_url(
        url, socket_connect_timeout=TIMEOUT_S, socket_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0)
    )
    try:
        async with asyncio.timeout(3 * TIMEOUT_S):
            await client.ping()
            began = time.monotonic()
            await client.ping()
            round_trip_s = time.monotonic() - began
            # A user with only the rights that hints need may ask this; it may not ask INFO.
            about = await client.execute_command("HELLO")  # type: ignore[no-untyped-call]
            return _facts(about, round_trip_s, await _hears(client))
    except (RedisError, OSError, TimeoutError) as error:
        raise ConnectionError(f"{type(error).__name__}: {error}".removesuffix(": ")) from error
    finally:
        await client.aclose()


def _facts(about: Any, round_trip_s: float, heard: bool) -> RedisFacts:
    pairs = about.items() if isinstance(about, dict) else zip(about[::2], about[1::2], strict=True)
    info = {bytes(name).decode(): value for name, value in pairs}
    server, version = bytes(info["server"]).decode(), bytes(info["version"]).decode()
    return RedisFacts(f"{server.capitalize()} {version}", int(version.split(".")[0]), round_trip_s, heard)


async def _hears(client: Redis) -> bool:
    topic, word = f"gapless:doctor:{secrets.token_hex(8)}", secrets.token_bytes(8)
    async with client.pubsub() as pubsub:
        await pubsub.subscribe(topic)
        while (message := await pubsub.get_message(timeout=TIMEOUT_S)) is not None:
            if message["type"] == "subscribe":
                await client.publish(topic, word)
            elif message["type"] == "message":
                return bool(message["data"] == word)
    return False
