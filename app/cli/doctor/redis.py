"""Whether Redis can carry hints."""

from __future__ import annotations

import asyncio

from app.cli.doctor.check import Check, fail, ok
from app.cli.doctor.settings import without_password
from cache.doctor import OLDEST_MAJOR, RedisFacts, examine


def checks(url: str) -> list[Check]:
    """Connect, publish one word and listen for it."""
    where = without_password(url)
    try:
        return [judge(asyncio.run(examine(url)), where)]
    except ConnectionError as error:
        advice = "start it, or correct GAPLESS_REDIS_URL: without it delivery waits for the sweep (1 s)"
        return [fail("redis", f"{where}: {error}", advice)]
    except ValueError as error:
        return [fail("redis", f"{where}: {error}", "correct GAPLESS_REDIS_URL")]


def judge(facts: RedisFacts, where: str) -> Check:
    """Version and hearing."""
    detail = f"{facts.product} at {where}, round trip {facts.round_trip_s * 1000:.1f} ms"
    if facts.major < OLDEST_MAJOR:
        return fail("redis", detail, f"Redis {OLDEST_MAJOR} or newer, or Valkey, is needed")
    if not facts.heard:
        advice = "allow this user SUBSCRIBE and PUBLISH on gapless:*"
        return fail("redis", f"{detail}: what is published is not heard", advice)
    return ok("redis", f"{detail}, publish and subscribe work")
