"""Programs that fork while they use a client. Run as `python -m tests.client.forking NAME URL`.

A child says what went wrong by its exit code and its stderr; it ends as Python ends, with all finalizers.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable

import pytest
from gapless import AsyncClient, Client, RetryPolicy

ONCE = RetryPolicy(attempts=1)


class Child(SystemExit):
    """Ends a child."""


def child(work: Callable[[], object]) -> None:
    """Does this in a forked child, and waits for its end."""
    if number := os.fork():
        _, status = os.waitpid(number, 0)
        assert status == 0, f"the child ended with {status}"
    else:
        work()
        raise Child(0)


def publish(url: str) -> None:
    """Parent and child in turn, and the parent once more."""
    with Client(url, retry=ONCE) as client:
        assert client.publish("a", "parent").id == 1
        child(lambda: _publishes(client, 2))
        assert client.publish("a", "parent").id == 3
        client.close()
        child(lambda: _refuses(lambda: client.publish("a", "closed"), "closed"))


def _publishes(client: Client, message_id: int) -> None:
    assert client.publish("a", "child").id == message_id


def _refuses(work: Callable[[], object], why: str) -> None:
    with pytest.raises(RuntimeError, match=why):
        work()


def stream(url: str) -> None:
    """The child reads on where the parent is, and then the parent reads what came over its own connection."""
    client = Client(url, retry=ONCE)
    reading = client.subscribe("a", start=0)
    assert next(reading).id == 1

    def read() -> None:
        with reading:
            assert next(reading).id == 2

    child(read)
    assert next(reading).id == 2
    if not os.fork():
        sys.stdin.read()  # Until the test has seen the end of the parent's connection.
        raise Child(0)
    reading.close()
    os.wait()


def auto(url: str) -> None:
    """What the parent got is the parent's alone; a child asks for itself."""
    client = Client(url, retry=ONCE)
    stream = client.consume("q", ack="auto", prefetch=2)
    assert next(stream).message.id == 1

    def take() -> None:
        assert next(stream).message.id == 3

    child(take)
    assert next(stream).message.id == 2
    stream.close()


def locks(url: str) -> None:
    """Whatever other threads hold at the fork, the child waits for none of it."""
    client = Client(url, retry=ONCE)
    reading = client.subscribe("a", start=0)
    idle = client.subscribe("a", start=0)
    consumer = client.consume("q")
    assert next(idle).id == 1
    assert next(reading).id == 1
    delivery = next(consumer)
    threading.Thread(target=lambda: list(reading), daemon=True).start()
    while not reading._stepping.locked():
        pass
    member = consumer._member
    pool = client._pool.http._transport._pool  # type: ignore[attr-defined]
    held = [
        pool._optional_thread_lock._lock,
        member._news,
        member._settling,
        member._plan_changed._cond,  # type: ignore[attr-defined]
        member.leases._guard,
        reading._closing._cond,  # type: ignore[attr-defined]
        client._pool._renewing,
    ]
    stopping, holding = threading.Event(), threading.Event()
    threading.Thread(target=_hold, args=(held, holding, stopping), daemon=True).start()
    holding.wait()

    def leave() -> None:
        _refuses(lambda: next(reading), "at the fork")
        reading.close()
        _refuses(delivery.__enter__, "another process")
        delivery.__exit__(None, None, None)
        consumer.close()
        idle.close()
        client.close()

    child(leave)
    stopping.set()


def _hold(locks: list[threading.Lock], holding: threading.Event, stopping: threading.Event) -> None:
    for lock in locks:
        lock.__enter__()
    holding.set()
    stopping.wait()
    for lock in locks:
        lock.__exit__(None, None, None)


def consume(url: str) -> None:
    """The child is a member of its own; what the parent took it may settle by hand."""
    client = Client(url, retry=ONCE)
    with client.consume("q") as consumer:
        taken = next(consumer)
        assert taken.receipt == "r1"

        def work() -> None:
            assert next(consumer).receipt == "r2"
            assert taken.ack().receipt == "r1"

        child(work)


def asynchronous(url: str) -> None:
    """What the parent used is refused, what it only made works, and leaving touches nothing."""
    unused = AsyncClient(url, retry=ONCE)
    client = AsyncClient(url, retry=ONCE)
    reading = client.subscribe("a", start=0)

    async def parent() -> None:
        assert (await anext(reading)).id == 1
        if number := os.fork():
            # The loop goes on in the parent alone.
            assert os.waitpid(number, 0)[1] == 0
            assert (await anext(reading)).id == 2
        else:
            raise Child(0)

    async def stranger() -> None:
        for work in (reading.__aenter__, reading.__anext__, lambda: client.publish("a", 1)):
            with pytest.raises(RuntimeError, match="forked"):
                await work()
        await reading.aclose()
        await client.aclose()
        assert (await unused.publish("a", "child")).id == 3

    with asyncio.Runner() as runner:
        try:
            runner.run(parent())
        except Child:
            # The child is out of the parent's loop, which it must not close.
            asyncio.run(stranger())
            sys.stderr.flush()
            os._exit(0)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
