"""No failure of Redis ends or blinds a bus, whatever it is. What is published meanwhile is dropped and
counted, nothing piles up. Once Redis is well again hints are heard, and whoever missed some is told."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from cache import bus as bus_module
from cache import keeping as keeping_module
from cache.bus import RedisBus
from tests.contract.hostile_redis import BEHAVIOURS, HostileRedis
from tests.contract.limits import short_limits
from tests.contract.listener import Listener, heard_again
from tests.leaks import RecordingLoop
from tests.patience import eventually

pytestmark = pytest.mark.usefixtures("patient")

LOOPS = {"asyncio": RecordingLoop, "uvloop": uvloop.new_event_loop}
MAX_FILES = 20
"""More open files than before: a connection here has three ends in this process, each being made anew."""


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks and tries again often."""
    monkeypatch.setattr(bus_module, "RECONNECT_S", 0.02)
    monkeypatch.setattr(bus_module, "PROBE_EVERY_S", 0.05)
    monkeypatch.setattr(bus_module, "PING_EVERY_S", 0.1)


def run(loop: str, program: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await program()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())


def count(counter: Any) -> float:
    return float(counter._value.get())


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("loop", ["uvloop", pytest.param("asyncio", marks=pytest.mark.drill)])
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_no_failure_ends_or_blinds_a_bus(redis_url: str, name: str, loop: str) -> None:
    async def program() -> None:
        behaviour = BEHAVIOURS[name]
        server = HostileRedis(redis_url)
        await server.start()
        here = Listener(server.url)
        await here.connected()
        dropped, failures, files = count(bus_module.DROPPED), count(keeping_module.FAILURES), open_files()

        def refused() -> bool:
            here.bus.send(b"x" * 1000)
            return behaviour.takes or count(bus_module.DROPPED) > dropped

        with short_limits():
            await server.turn(behaviour.play(server))
            await eventually(refused)
            await eventually(lambda: server.met >= 6 or here.task.done())
        assert not here.task.done(), here.task.exception()
        assert count(keeping_module.FAILURES) >= failures + 4
        assert not behaviour.takes or not any(here.heard), "it passed nothing on"
        assert open_files() <= files + MAX_FILES
        assert isinstance(here.bus, RedisBus)
        assert len(here.bus._hints) <= bus_module.MAX_QUEUED

        told = here.missed
        await server.turn(None)
        there = Listener(redis_url)
        await there.connected()
        await heard_again(there, here)
        await heard_again(here, there)
        assert here.missed > told
        await here.stop()
        await there.stop()
        await server.stop()

    run(loop, program)


@pytest.mark.parametrize("loop", LOOPS)
def test_no_failure_at_the_start_ends_a_bus(redis_url: str, loop: str) -> None:
    """One behaviour after another, none of them preceded by a connection that worked."""

    async def program() -> None:
        server = HostileRedis(redis_url)
        await server.start()
        await server.turn(next(iter(BEHAVIOURS.values())).play(server))
        here = Listener(server.url)
        with short_limits():
            for behaviour in BEHAVIOURS.values():
                await server.turn(behaviour.play(server))
                await eventually(lambda: server.met >= 2 or here.task.done())
                assert not here.task.done(), here.task.exception()
        await server.turn(None)
        there = Listener(redis_url)
        await heard_again(there, here)
        await here.stop()
        await there.stop()
        await server.stop()

    run(loop, program)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("scheme", ["rediss", "redis"])
def test_an_address_of_nothing_or_of_another_kind_ends_nothing(
    redis_url: str, loop: str, scheme: str
) -> None:
    """TLS to a port that knows none; and a port where nobody listens, until somebody does."""

    async def program() -> None:
        server = HostileRedis(redis_url)
        await server.start()
        if scheme == "redis":
            await server.stop()
        failures = count(keeping_module.FAILURES)
        here = Listener(server.url.replace("redis:", f"{scheme}:"))
        with short_limits():
            await eventually(lambda: count(keeping_module.FAILURES) >= failures + 6 or here.task.done())
        assert not here.task.done(), here.task.exception()
        assert not here.bus.connected
        if scheme == "redis":
            await server.start()
            await heard_again(here, here)
        await here.stop()
        await server.stop()

    run(loop, program)


@pytest.mark.parametrize("hangs", [False, True], ids=["unknown", "hangs"])
def test_a_name_that_does_not_resolve_ends_nothing(redis_url: str, hangs: bool) -> None:
    """And a look-up that hangs is one look-up, however often somebody would connect."""

    async def program() -> None:
        server = HostileRedis(redis_url)
        await server.start()
        loop = asyncio.get_running_loop()
        found, released, asked = loop.getaddrinfo, asyncio.Event(), 0

        async def look_up(host: str, *arguments: Any, **options: Any) -> Any:
            nonlocal asked
            asked += 1
            if hangs:
                await released.wait()
            if not released.is_set():
                raise socket.gaierror(-3, "Temporary failure in name resolution")
            return await found("127.0.0.1", *arguments, **options)

        loop.getaddrinfo = look_up  # type: ignore[assignment]
        failures = count(keeping_module.FAILURES)
        here = Listener(server.url.replace("127.0.0.1", "redis.example"))
        with short_limits():
            await eventually(lambda: count(keeping_module.FAILURES) >= failures + 8 or here.task.done())
        assert not here.task.done(), here.task.exception()
        assert not hangs or asked == 1
        released.set()
        await heard_again(here, here)
        await here.stop()
        await server.stop()

    run("asyncio", program)


@pytest.mark.parametrize("loop", LOOPS)
def test_what_cannot_be_sent_does_not_keep_connections_open(redis_url: str, loop: str) -> None:
    """More than sockets hold, to one that reads nothing, over and over."""

    async def program() -> None:
        server = HostileRedis(redis_url)
        await server.start()
        here = Listener(server.url)
        await here.connected()

        def tried_often() -> bool:
            here.bus.send(b"x" * 8_000_000)
            return server.met >= 12

        with short_limits():
            await server.turn(BEHAVIOURS["never reads"].play(server))
            files = open_files()
            await eventually(tried_often)
        # The server never reads, so it never learns that they are gone: its own ends stay.
        assert open_files() <= files + server.met + 4
        await here.stop()
        await server.stop()

    run(loop, program)
