"""The real bus outlives whatever happens to Redis. What every bus does: tests/contract/test_bus.py."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from cache import bus as bus_module
from cache.bus import RedisBus
from cache.link import Link
from tests.contract.freezing_proxy import FreezingProxy
from tests.contract.limits import short_limits
from tests.contract.listener import Listener, heard_again
from tests.patience import eventually

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
async def proxy(redis_url: str) -> AsyncIterator[FreezingProxy]:
    made = FreezingProxy(redis_url)
    await made.start()
    yield made
    await made.stop()


async def test_the_queue_is_bounded_and_keeps_the_newest(redis_url: str) -> None:
    bus = RedisBus(redis_url, "t", "n", lambda payload: None, lambda: None)
    for number in range(bus_module.MAX_QUEUED + 10):
        bus.send(b"%d" % number)
    assert bus._queue[0].payload == b"10"
    assert len(bus._queue) == bus_module.MAX_QUEUED
    for _ in range(10):
        bus.send(b"x" * (bus_module.MAX_QUEUED_BYTES // 4))
    assert len(bus._queue) == 4
    assert bus._queued_bytes == 4 * (bus_module.MAX_QUEUED_BYTES // 4)


async def test_a_frozen_redis_ends_nothing(proxy: FreezingProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes nothing and says nothing, with more to send than sockets hold; afterwards all is as before."""
    monkeypatch.setattr(bus_module, "RECONNECT_S", 0.05)
    listener = Listener(proxy.url)
    await listener.connected()
    with short_limits():
        # After this no step is under way that began with a long limit.
        await heard_again(listener, listener)
        proxy.freeze()
        for _ in range(3):
            listener.bus.send(b"x" * 8_000_000)
        # What the queue had no room for is dropped by now. The rest is, once it could not be sent.
        dropped = bus_module.DROPPED._value.get()
        await eventually(lambda: bus_module.DROPPED._value.get() > dropped or listener.task.done())
    assert not listener.task.done(), listener.task.exception()
    proxy.thaw()
    await heard_again(listener, listener)
    await listener.stop()


async def test_silence_is_asked_about(proxy: FreezingProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that died without a word is given up, and what may have been missed meanwhile is told."""
    monkeypatch.setattr(bus_module, "RECONNECT_S", 0.05)
    monkeypatch.setattr(bus_module, "PING_EVERY_S", 0.1)
    listener = Listener(proxy.url)
    await listener.connected()
    proxy.freeze()
    with short_limits():
        await eventually(lambda: not listener.bus.connected)
    proxy.thaw()
    await eventually(lambda: listener.missed == 2)
    await listener.stop()


async def test_a_quiet_redis_is_not_a_dead_one(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_module, "PING_EVERY_S", 0.02)
    listener = Listener(redis_url)
    await listener.connected()
    pings = 0
    tell = Link.tell

    async def counted(self: Link, *command: bytes | str) -> None:
        nonlocal pings
        pings += command == ("PING",)
        await tell(self, *command)

    monkeypatch.setattr(Link, "tell", counted)
    await eventually(lambda: pings >= 10)
    assert listener.missed == 1
    await listener.stop()
