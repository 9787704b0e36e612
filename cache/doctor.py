"""What Redis says of itself, for `gapless doctor`: facts only, judged elsewhere."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

OLDEST_MAJOR = 7
TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class RedisFacts:
    """`version` is that of Redis' protocol and commands; Valkey tells its own in `product`. `heard`: what was
    published on one connection arrived on another."""

    product: str
    version: str
    major: int
    round_trip_s: float
    heard: bool


async def examine(url: str) -> RedisFacts:
    """Raises `ConnectionError` in words, and `ValueError` for a URL that is none."""
    client = Redis.from_url(
        url, socket_connect_timeout=TIMEOUT_S, socket_timeout=TIMEOUT_S, retry=Retry(NoBackoff(), 0)
    )
    try:
        async with asyncio.timeout(3 * TIMEOUT_S):
            await client.ping()
            began = time.monotonic()
            await client.ping()
            round_trip_s = time.monotonic() - began
            about = await client.info("server")
            return _facts(about, round_trip_s, await _hears(client))
    except (RedisError, OSError, TimeoutError) as error:
        raise ConnectionError(f"{type(error).__name__}: {error}".removesuffix(": ")) from error
    finally:
        await client.aclose()


def _facts(about: dict[str, object], round_trip_s: float, heard: bool) -> RedisFacts:
    version = str(about.get("redis_version", "0"))
    own = about.get("valkey_version")
    product = f"Valkey {own}" if own else f"Redis {version}"
    # Valkey goes on calling itself Redis 7.2 for the programs that ask.
    return RedisFacts(product, version, int(version.split(".")[0]), round_trip_s, heard)


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
