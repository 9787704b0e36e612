"""Which processes count as lost, as a real Redis tells it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import pytest
import redis.asyncio

from cache.link import Address, Link
from cache.presence import RENEWED_AT_ONCE, RedisPresence
from cache.processes import MAX_NAMED, Processes
from tests.contract.showing import Process, client, through, topic_of_this_test
from tests.patience import PATIENCE_S, eventually

pytestmark = pytest.mark.usefixtures("patient")


async def test_long_work_is_no_silence(redis_url: str) -> None:
    """A process says that it lives in the middle of a beat, and while it writes all anew."""
    one = Process(through(redis_url, beat_s=PATIENCE_S))
    await one.connected()
    assert isinstance(one.port, RedisPresence)
    many = 3 * RENEWED_AT_ONCE
    for number in range(many):
        one.join([client()], ("default", f"many.{number}"))
    await eventually(lambda: len(one.port._written) == many)  # type: ignore[attr-defined]
    await one.kill()
    port, looks = one.port, 0
    link = await Link.open(port._address)
    ask = link.ask

    async def asked(commands: Sequence[Sequence[bytes | str]]) -> list[Any]:
        nonlocal looks
        looks += commands[0][0] == "SET"
        return await ask(commands)

    link.ask = asked  # type: ignore[method-assign]
    port._writing, port._ping_every_s, port._check_at = True, 0, 0
    await port._beat(link)
    assert looks == many / RENEWED_AT_ONCE
    looks = 0
    port._whole.update(port._written)
    await port._flush(link)
    assert looks > 1
    port._writing = False
    await link.close()
    await one.stop()


async def test_a_lost_process_is_given_out_once_and_forgotten(redis_url: str) -> None:
    """Unless it was back in between. Whatever Redis holds, no more are kept than are looked at."""
    admin = redis.asyncio.Redis.from_url(redis_url)
    topic, other = topic_of_this_test(), "f" * 16
    link = await Link.open(Address(redis_url))
    own = Processes(topic, "0" * 16, 10)

    async def seen(left_ms: int | None) -> list[str]:
        """Those that are lost, when the key of the other process has this time left."""
        await admin.zadd(f"{topic}/alive", {other: 0})
        if left_ms is None:
            await admin.delete(f"{topic}/alive/{other}")
        else:
            await admin.set(f"{topic}/alive/{other}", "", px=left_ms)
        await own.check(link)
        return list(own.gone)

    assert await seen(59_000) == []
    assert await seen(40_000) == [other]
    assert await own.next_gone() == other
    assert await seen(39_000) == [other]
    assert set(own.gone.values()) == {True}
    assert await seen(59_000) == []
    assert await seen(40_000) == [other]
    assert set(own.gone.values()) == {False}
    assert await seen(None) == [other], "what it has shown may be there"

    async def forgotten() -> bool:
        await own.check(link)
        return not own.gone and await admin.zscore(f"{topic}/alive", other) is None

    await eventually(forgotten)

    many = {secrets.token_hex(8): 0 for _ in range(2 * MAX_NAMED)}
    await admin.zadd(f"{topic}/alive", many)
    await own.check(link)
    assert len(own._absent_since) <= MAX_NAMED
    await admin.aclose()
    await link.close()
