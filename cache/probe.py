"""Checks once, at a start, whether a Redis answers."""

from __future__ import annotations

import asyncio
import contextlib

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

TIMEOUT_S = 1.5


async def silence_of(url: str) -> str | None:
    """Why the Redis at `url` cannot be used now; None if it can. Takes at most 3 s.

    Raises ValueError for an invalid URL.
    """
    client = Redis.from_url(url, retry=Retry(NoBackoff(), 0))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            await client.ping()
    except TimeoutError:
        return f"no answer within {TIMEOUT_S:.1f} s"
    except (RedisError, OSError, RuntimeError) as error:
        return str(error) or type(error).__name__
    else:
        return None
    finally:
        with contextlib.suppress(RedisError, OSError, TimeoutError, RuntimeError):
            async with asyncio.timeout(TIMEOUT_S):
                await client.aclose()
