"""Every bus: what one process sends the others hear, and where some may have been missed, they are told."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
import redis.asyncio

from subscriptions.domain.errors import Code, GaplessError
from subscriptions.engine.exchange import OpenBus
from tests.contract.limits import short_limits
from tests.contract.listener import Listener, heard_again, through, topic_of_this_test
from tests.contract.memory_bus import MemoryHub
from tests.patience import cancel, eventually

pytestmark = pytest.mark.usefixtures("patient")

MANY = 3000
"""More than a bus holds until it is sent."""


@dataclass(frozen=True, slots=True)
class Wire:
    """What the buses of a test have in common."""

    open: OpenBus
    cut: Callable[[], Awaitable[None]]
    """Everybody is cut off, and may come back."""


@pytest.fixture(params=["memory", "redis"])
def wire(request: pytest.FixtureRequest) -> Wire:
    if request.param == "memory":
        hub = MemoryHub()
        return Wire(hub.open, hub.cut)
    url: str = request.getfixturevalue("redis_url")

    name = f"wire-{secrets.token_hex(8)}"

    async def cut() -> None:
        """Others use this Redis too, so only connections of this name end."""
        admin = redis.asyncio.Redis.from_url(url)
        listening = [c for c in await admin.client_list(_type="pubsub") if c["name"] == name]
        assert listening
        for each in listening:
            await admin.client_kill_filter(_id=each["id"])
        await admin.aclose()

    return Wire(through(f"{url}{'&' if '?' in url else '?'}client_name={name}"), cut)


async def test_everybody_hears_in_order(wire: Wire) -> None:
    first, second = Listener(wire.open), Listener(wire.open)
    await first.connected()
    await second.connected()
    payloads = [b"%d" % n for n in range(500)]
    for payload in payloads:
        first.bus.send(payload)
    await eventually(lambda: first.heard == payloads and second.heard == payloads)
    await first.stop()
    await second.stop()


async def test_another_topic_is_not_heard(wire: Wire) -> None:
    first, other = Listener(wire.open), Listener(wire.open, "gapless:other:hints")
    await first.connected()
    await other.connected()
    other.bus.send(b"theirs")
    await eventually(lambda: other.heard == [b"theirs"])
    assert not first.heard
    await first.stop()
    await other.stop()


async def test_whoever_was_cut_off_is_told_that_hints_may_be_missing(wire: Wire) -> None:
    listener = Listener(wire.open)
    await listener.connected()
    assert listener.missed == 1, "before the first subscription anything may have been sent"
    await wire.cut()
    await eventually(lambda: listener.missed == 2)
    await listener.connected()
    await heard_again(listener, listener)
    assert not listener.task.done()
    await listener.stop()


async def test_one_process_may_be_sent_to(wire: Wire) -> None:
    first, second, third = (Listener(wire.open) for _ in range(3))
    for listener in (first, second, third):
        await listener.connected()
    first.bus.send(b"to all")
    assert await first.bus.send_to(second.node, lambda: b"to one")
    await eventually(lambda: second.heard == [b"to all", b"to one"])
    made: list[bytes] = []

    def make() -> bytes:
        made.append(b"to none")
        return made[-1]

    assert not await first.bus.send_to("nobody", make)
    assert made == []
    first.bus.send(b"again")
    await eventually(lambda: third.heard == [b"to all", b"again"])
    for listener in (first, second, third):
        await listener.stop()


async def test_sending_to_one_fails_while_it_cannot_be_known(wire: Wire) -> None:
    bus = wire.open(topic_of_this_test(), "n", lambda payload: None, lambda: None)
    with short_limits(), pytest.raises(GaplessError) as refused:
        await bus.send_to("n", lambda: b"lost")
    assert refused.value.code is Code.UNAVAILABLE


async def test_it_is_connected_while_it_runs(wire: Wire) -> None:
    bus = wire.open(topic_of_this_test(), "n", lambda payload: None, lambda: None)
    assert not bus.connected
    running = asyncio.create_task(bus.run())
    await eventually(lambda: bus.connected)
    await cancel(running)
    assert not bus.connected


async def test_it_knows_whether_others_listen(wire: Wire) -> None:
    """Before it knows, others may: it makes hints."""
    idle = wire.open(topic_of_this_test(), "n", lambda payload: None, lambda: None)
    assert not idle.alone
    first = Listener(wire.open)
    await eventually(lambda: first.bus.alone)
    second = Listener(wire.open)
    await eventually(lambda: second.bus.connected and not first.bus.alone and not second.bus.alone)
    await first.stop()
    assert not first.bus.alone
    await eventually(lambda: second.bus.alone)
    await second.stop()


async def test_the_oldest_that_nobody_took_are_dropped(wire: Wire) -> None:
    """Sending waits for nothing, and holds no more than so much."""
    there = Listener(wire.open)
    await there.connected()
    bus = wire.open(topic_of_this_test(), "n", lambda payload: None, lambda: None)
    payloads = [b"%d" % n for n in range(MANY)]
    for payload in payloads:
        bus.send(payload)
    running = asyncio.create_task(bus.run())
    await eventually(lambda: there.heard[-1:] == payloads[-1:])
    assert 0 < len(there.heard) < MANY
    assert there.heard == payloads[-len(there.heard) :]
    await cancel(running)
    await there.stop()
