"""The real bus outlives whatever happens to Redis. What every bus does: tests/contract/test_bus.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from cache import bus as bus_module
from cache.bus import RedisBus
from cache.link import Link
from subscriptions.domain.errors import Code, GaplessError
from tests.contract.freezing_proxy import FreezingProxy
from tests.contract.limits import short_limits
from tests.contract.listener import Listener, heard_again, topic_of_this_test
from tests.patience import cancel, eventually

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
    assert bus._hints.first.payload == b"10"
    assert len(bus._hints) == bus_module.MAX_QUEUED
    for _ in range(10):
        bus.send(b"x" * (bus_module.MAX_QUEUED_BYTES // 4))
    assert len(bus._hints) == 4
    assert bus._hints.size_bytes == 4 * (bus_module.MAX_QUEUED_BYTES // 4)


async def test_what_goes_to_one_process_displaces_no_hint_and_hints_displace_none_of_it(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no room is refused, and what is queued stays."""
    monkeypatch.setattr(bus_module, "MAX_QUEUED", 20)
    bus = RedisBus(redis_url, "t", "n", lambda payload: None, lambda: None)
    for number in range(20):
        bus.send(b"%d" % number)
    dropped = bus_module.DROPPED._value.get()
    waiting = [asyncio.create_task(bus.send_to("m", lambda: b"never made")) for _ in range(20)]
    await asyncio.sleep(0)
    with pytest.raises(GaplessError) as refused:
        await bus.send_to("m", lambda: b"never made")
    assert refused.value.code is Code.UNAVAILABLE
    assert bus_module.DROPPED._value.get() == dropped
    assert bus._hints.first.payload == b"0"
    for _ in range(30):
        bus.send(b"more")
    assert not any(task.done() for task in waiting)
    assert bus_module.DROPPED._value.get() == dropped + 30
    await cancel(*waiting)


async def test_nothing_is_made_for_a_process_that_is_not_there(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much is to be sent to it, what others send to processes that are there arrives."""
    here, there = Listener(redis_url), Listener(redis_url)
    await here.connected()
    await there.connected()
    monkeypatch.setattr(bus_module, "MAX_QUEUED_BYTES", 1000)
    large = b"x" * 400

    async def send(node: str) -> bool:
        return await here.bus.send_to(node, lambda: large)

    answers = await asyncio.gather(*(send("0" * 16) for _ in range(200)), send(there.node))
    assert answers == [False] * 200 + [True]
    await eventually(lambda: there.heard == [large])
    with pytest.raises(GaplessError):
        await here.bus.send_to(there.node, lambda: large * 2)
    await here.stop()
    await there.stop()


async def test_what_nobody_waits_for_any_more_is_not_sent(redis_url: str) -> None:
    there = Listener(redis_url)
    await there.connected()
    bus = RedisBus(redis_url, topic_of_this_test(), "n", lambda payload: None, lambda: None)
    gone = asyncio.create_task(bus._publish_to(f"{topic_of_this_test()}:{there.node}", b"late"))
    await asyncio.sleep(0)
    await cancel(gone)
    waiting = asyncio.create_task(bus.send_to(there.node, lambda: b"in time"))
    running = asyncio.create_task(bus.run())
    assert await waiting
    await eventually(lambda: there.heard == [b"in time"])
    await cancel(running)
    await there.stop()


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
