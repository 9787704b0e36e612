"""Webhooks of several processes, and of one that stops or is killed."""

from __future__ import annotations

import asyncio

import asyncpg
import httpx
import pytest

from app.faces.webhooks.limiter import FIRST_PLACES
from tests.conftest import Serve
from tests.hook import hook, silence
from tests.integration.test_webhooks import (
    ALLOW,
    OK,
    Held,
    attempts,
    in_flight,
    named,
    numbers,
    ok,
)
from tests.patience import eventually, http_client


@pytest.mark.drill
async def test_processes_share_the_messages(serve: Serve) -> None:
    services = [serve("--workers", "2", **ALLOW), serve(**ALLOW)]
    async with hook(OK) as there, http_client(services[0].url) as client:
        pushed = named(client)
        ok(await pushed.put(there), 201)
        for start in range(0, 200, 20):
            await pushed.publish(*range(start, start + 20))
        await eventually(lambda: pushed.settled(200))
        assert sorted(numbers(there)) == list(range(200))
        assert set(attempts(there)) == {1}


async def end_leases(owner: asyncpg.Connection) -> None:
    """As if they had lasted as long as they may."""
    await owner.execute(
        "with ended as (update gapless.deliveries set at = clock_timestamp()"
        " where subscription_id > 0 and state = 0 returning subscription_id, at)"
        " update gapless.progress p set next_end = least(p.next_end, e.at) from ended e"
        " where p.subscription_id = e.subscription_id"
    )


async def test_a_process_posts_for_its_own_namespace(serve: Serve, owner: asyncpg.Connection) -> None:
    here = serve(**ALLOW)
    elsewhere = serve(**ALLOW, GAPLESS_NAMESPACE="elsewhere")
    async with hook(silence) as there:
        async with http_client(elsewhere.url) as client:
            pushed = named(client)
            ok(await pushed.put(there, backoff=[0]), 201)
            await pushed.publish("x")
            await eventually(lambda: there.requests)
        elsewhere.kill()
        there.answer = OK
        await end_leases(owner)
        async with http_client(here.url) as client, hook(OK) as other:
            # This one is posted later than the lease of that one ended, and nobody here took that.
            ours = named(client)
            ok(await ours.put(other), 201)
            later = {"data": "y", "delay": 1.5}
            ok(await client.post(f"/v1/channels/{ours.name}.one/messages", json=later), 202)
            await eventually(lambda: other.requests)
        assert len(there.requests) == 1
        serve(**ALLOW, GAPLESS_NAMESPACE="elsewhere")
        await eventually(lambda: len(there.requests) == 2)
        assert attempts(there) == [1, 2]


@pytest.mark.realtime("A service that stops gives its receivers 9 s for their answers.")
async def test_a_stop_lets_what_is_under_way_be_answered(serve: Serve) -> None:
    service = serve(**ALLOW)
    held = Held()
    async with hook(held) as there:
        async with http_client(service.url) as client:
            pushed = named(client)
            ok(await pushed.put(there, max_in_flight=3), 201)
            await pushed.publish(*range(5))
            await eventually(lambda: len(there.requests) == 3)
        service.process.terminate()
        await eventually(lambda: refuses(service.url))
        held.release()
        assert await asyncio.to_thread(service.stop) == 0
        assert len(there.requests) == 3
        async with http_client(serve(**ALLOW).url) as client:
            pushed.client = client
            await eventually(lambda: pushed.settled(5))
        assert sorted(numbers(there)) == list(range(5))
        assert set(attempts(there)) == {1}


async def refuses(url: str) -> bool:
    """Whether nobody listens there any more."""
    try:
        async with http_client(url) as client:
            await client.get("/healthz")
    except httpx.TransportError:
        return True
    return False


@pytest.mark.drill
async def test_a_stop_does_not_wait_for_ever(serve: Serve) -> None:
    service = serve(**ALLOW)
    async with hook(silence) as there:
        async with http_client(service.url) as client:
            pushed = named(client)
            ok(await pushed.put(there), 201)
            await pushed.publish("x")
            await eventually(lambda: there.requests)
        assert await asyncio.to_thread(service.stop) == 0
        there.answer = OK
        async with http_client(serve(**ALLOW).url) as client:
            pushed.client = client
            # Its lease ended with the request, long before its time.
            await eventually(lambda: pushed.settled(1))
        assert attempts(there) == [1, 2]


@pytest.mark.drill
async def test_what_a_stop_leaves_unsent_was_no_attempt(serve: Serve) -> None:
    """Or the last attempt would make a dead letter that was never posted."""
    service = serve(**ALLOW)
    async with hook(silence) as there:
        async with http_client(service.url) as client:
            greedy, modest = named(client), named(client)
            ok(await greedy.put(there), 201)
            await greedy.publish(*range(FIRST_PLACES))
            await eventually(lambda: len(there.requests) == FIRST_PLACES)
            ok(await modest.put(there, max_deliver=1), 201)
            await modest.publish("patient")
            await eventually(lambda: in_flight(modest, 1))
        assert await asyncio.to_thread(service.stop) == 0
        there.answer = OK
        there.requests.clear()
        async with http_client(serve(**ALLOW).url) as client:
            modest.client = client
            await eventually(lambda: modest.settled(1))
            assert not await modest.dead_letters()
        assert "patient" in numbers(there)


async def test_a_killed_process_s_requests_are_made_again(serve: Serve, owner: asyncpg.Connection) -> None:
    service = serve(**ALLOW)
    async with hook(silence) as there:
        async with http_client(service.url) as client:
            pushed = named(client)
            ok(await pushed.put(there), 201)
            await pushed.publish("x")
            await eventually(lambda: there.requests)
        service.kill()
        there.answer = OK
        await end_leases(owner)
        async with http_client(serve(**ALLOW).url) as client:
            pushed.client = client
            await eventually(lambda: pushed.settled(1))
        first, second = there.requests
        assert (first[1]["webhook-id"], first[2]) == (second[1]["webhook-id"], second[2])
        assert attempts(there) == [1, 2]
