"""Webhooks by the real service: who is posted to, how often, and what becomes of the message."""

from __future__ import annotations

import asyncio
import itertools
import json
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from app.embedded import EmbeddedPostgres
from app.faces.webhooks.limiter import MAX_CONNECTIONS_A_HOST
from tests.conftest import External, Serve, drop_database, make_database, service_environment
from tests.hook import SECRET, Answer, Hook, hook, reply, silence
from tests.patience import eventually, http_client
from tests.support import RunningService

ALLOW = {"GAPLESS_WEBHOOK_ALLOW_PRIVATE": "1"}
OTHER_SECRET = "whsec_" + b64encode(b"o" * 24).decode()
LONG_S = 3600.0  # A lease that no test waits for.

# A kept connection would be closed by whichever service is stopped last.
OK = reply("200 OK", "connection: close")
FAILING = reply("500 Internal Server Error", "connection: close", body=b"secret of the receiver")
_numbers = itertools.count(1)


class Pushed:
    """One subscription with a webhook, and the channel it listens to."""

    def __init__(self, client: httpx.AsyncClient, name: str) -> None:
        self.client = client
        self.name = name
        self.path = f"/v1/subscriptions/{name}"

    async def put(self, there: Hook, **members: Any) -> httpx.Response:
        push = {"url": there.target().url, "secret": SECRET}
        body = {"channels": [f"{self.name}.>"], "push": push, "ack_wait": LONG_S, **members}
        return await self.client.put(self.path, json=body)

    async def publish(self, *data: Any, keys: list[str] | None = None) -> list[int]:
        """The ids of messages with these data."""
        messages = [{"data": item, **({"key": keys[n]} if keys else {})} for n, item in enumerate(data)]
        answer = await self.client.post(f"/v1/channels/{self.name}.one/messages", json=messages)
        return [message["id"] for message in ok(answer, 201)["messages"]]

    async def stats(self) -> Any:
        return ok(await self.client.get(self.path))["stats"]

    async def settled(self, acked: int) -> bool:
        stats = await self.stats()
        return (stats["acked"], stats["lag"], stats["in_flight"]) == (acked, 0, 0)

    async def dead_letters(self) -> list[Any]:
        answer = await self.client.get("/v1/dead-letters", params={"subscription": self.name})
        return list(ok(answer)["dead_letters"])


def ok(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def numbers(there: Hook) -> list[Any]:
    """The data of what was posted, in order."""
    return [json.loads(body)["data"] for _, _, body in there.requests]


def attempts(there: Hook) -> list[int]:
    return [int(headers["gapless-attempt"]) for _, headers, _ in there.requests]


class Held:
    """Answers once it is released."""

    def __init__(self, answer: Answer = OK) -> None:
        self._answer = answer
        self._open = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        await self._answer(reader, writer)

    def release(self) -> None:
        self._open.set()


@pytest.fixture(scope="module")
def url(
    postgres: EmbeddedPostgres | External, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A service that may reach loopback, for all tests that do not stop theirs."""
    made = asyncio.run(make_database(postgres))
    home: Path = tmp_path_factory.mktemp("webhooks")
    service = RunningService(service_environment(made, redis_url, home) | ALLOW)
    try:
        yield service.url
    finally:
        service.kill()
        asyncio.run(drop_database(postgres, made))


def named(client: httpx.AsyncClient) -> Pushed:
    return Pushed(client, f"hook{next(_numbers)}")


@pytest.fixture
async def pushed(url: str) -> AsyncIterator[Pushed]:
    async with http_client(url) as client:
        made = named(client)
        yield made
        await client.delete(made.path)


async def test_a_message_is_posted_once_and_verifies(pushed: Pushed) -> None:
    async with hook(OK) as there:
        ok(await pushed.put(there), 201)
        (message_id,) = await pushed.publish({"text": "hello"})
        await eventually(lambda: pushed.settled(1))
        ((first, headers, body),) = there.requests
    assert first == "POST /hook?a=b HTTP/1.1"
    assert Webhook(SECRET).verify(body, headers)["data"] == {"text": "hello"}
    stored = await pushed.client.get(f"/v1/channels/{pushed.name}.one/messages/{message_id}")
    assert json.loads(body) == stored.json()
    assert headers["webhook-id"] == f"msg_{message_id}_{pushed.name}"
    assert (headers["gapless-subscription"], headers["gapless-attempt"]) == (pushed.name, "1")


async def test_what_fails_is_tried_again_then_dead_and_posted_again_by_a_replay(pushed: Pushed) -> None:
    async with hook(FAILING) as there:
        ok(await pushed.put(there, backoff=[0.05], max_deliver=3), 201)
        (message_id,) = await pushed.publish("poison")
        (dead,) = await eventually(pushed.dead_letters)
        assert attempts(there) == [1, 2, 3]
        assert (dead["reason"], dead["attempts"]) == ("max_deliver", 3)
        assert dead["last_error"] == "answered 500 Internal Server Error"
        there.answer = OK
        ok(await pushed.client.post(f"/v1/dead-letters/{dead['id']}/replay"))
        await eventually(lambda: pushed.settled(1))
        assert attempts(there) == [1, 2, 3, 1]
        assert {headers["webhook-id"] for _, headers, _ in there.requests} == {
            f"msg_{message_id}_{pushed.name}"
        }
        assert not await pushed.dead_letters()


async def test_the_schedule_is_the_standards_where_none_is_given(pushed: Pushed) -> None:
    async with hook(FAILING) as there:
        made = ok(await pushed.put(there), 201)
        assert made["backoff"] == [5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400]
        assert made["max_deliver"] == len(made["backoff"]) + 1
        await pushed.publish("once")
        await eventually(lambda: there.requests)
        delayed = await eventually(partial(when, pushed, "delayed"))
        assert (delayed["delayed"], len(there.requests)) == (1, 1)


async def when(pushed: Pushed, count: str) -> Any:
    """The stats once this one is not 0."""
    stats = await pushed.stats()
    return stats if stats[count] else None


async def test_a_receiver_that_names_a_time_is_not_posted_to_before(pushed: Pushed) -> None:
    async with hook(reply("503 Service Unavailable", "connection: close", "retry-after: 3600")) as there:
        ok(await pushed.put(there, backoff=[0]), 201)
        await pushed.publish("later")
        await eventually(partial(when, pushed, "delayed"))
        assert len(there.requests) == 1


async def test_a_receiver_that_is_gone_pauses_the_subscription(pushed: Pushed) -> None:
    async with hook(reply("410 Gone", "connection: close")) as there:
        ok(await pushed.put(there, backoff=[0]), 201)
        await pushed.publish(1)
        await eventually(partial(paused, pushed))
        # Between the nack and the pause it may have been tried once more.
        await eventually(partial(waits, pushed, 1))
        assert not await pushed.dead_letters()
        there.answer = OK
        ok(await pushed.client.post(f"{pushed.path}/resume"))
        await eventually(lambda: pushed.settled(1))
        await pushed.publish(2)
        await eventually(lambda: pushed.settled(2))
        assert numbers(there)[-2:] == [1, 2]
        assert attempts(there)[-2] == len(there.requests) - 1


async def waits(pushed: Pushed, lag: int) -> bool:
    stats = await pushed.stats()
    return (stats["lag"], stats["in_flight"]) == (lag, 0)


async def paused(pushed: Pushed) -> bool:
    return bool(ok(await pushed.client.get(pushed.path))["paused"])


async def test_one_that_points_elsewhere_by_now_is_not_paused(pushed: Pushed) -> None:
    gone = Held(reply("410 Gone", "connection: close"))
    async with hook(gone) as old, hook(OK) as new:
        ok(await pushed.put(old, backoff=[0]), 201)
        await pushed.publish(1)
        await eventually(lambda: old.requests)
        ok(await pushed.client.patch(pushed.path, json={"push": {**push_of(new), "secret": OTHER_SECRET}}))
        gone.release()
        await eventually(lambda: pushed.settled(1))
        assert not await paused(pushed)
        (request,) = new.requests
        assert Webhook(OTHER_SECRET).verify(request[2], request[1])["data"] == 1


async def test_a_changed_address_keeps_the_secret(pushed: Pushed) -> None:
    async with hook(OK) as old, hook(OK) as new:
        ok(await pushed.put(old), 201)
        for push in (push_of(new), {**push_of(new), "secret": None}):
            ok(await pushed.client.patch(pushed.path, json={"push": push}))
        await pushed.publish(1)
        await eventually(lambda: pushed.settled(1))
        ((_, headers, body),) = new.requests
        assert Webhook(SECRET).verify(body, headers)["data"] == 1
        ok(await pushed.client.patch(pushed.path, json={"push": None}))
        refused = await pushed.client.patch(pushed.path, json={"push": push_of(new)})
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "push.secret")
        assert not old.requests


def push_of(there: Hook) -> dict[str, str]:
    return {"url": there.target().url}


async def test_a_new_secret_signs_what_is_sent_after_it(pushed: Pushed) -> None:
    async with hook(OK) as there:
        ok(await pushed.put(there), 201)
        for secret in (SECRET, OTHER_SECRET, SECRET):
            await pushed.client.patch(pushed.path, json={"push": {**push_of(there), "secret": secret}})
            there.requests.clear()
            await pushed.publish("x")
            _, headers, body = (await eventually(lambda: there.requests))[0]
            Webhook(secret).verify(body, headers)
            wrong = SECRET if secret == OTHER_SECRET else OTHER_SECRET
            with pytest.raises(WebhookVerificationError):
                Webhook(wrong).verify(body, headers)


@pytest.mark.realtime("The service gives a receiver 15 s for its answer.")
async def test_one_that_is_pushed_no_more_is_pulled_from(pushed: Pushed) -> None:
    held = Held()
    async with hook(held) as there:
        ok(await pushed.put(there, max_in_flight=1), 201)
        await pushed.publish(1, 2)
        await eventually(lambda: there.requests)
        ok(await pushed.client.patch(pushed.path, json={"push": None}))
        held.release()
        (delivery,) = await eventually(partial(pulled, pushed))
        assert (delivery["message"]["data"], delivery["attempt"]) == (2, 1)
        assert numbers(there) == [1]


async def pulled(pushed: Pushed) -> list[Any]:
    answer = await pushed.client.post(f"{pushed.path}/pull", json={"wait": 20})
    return list(ok(answer)["deliveries"])


async def test_a_redirect_leads_nowhere(pushed: Pushed) -> None:
    async with hook(OK) as inside:
        location = f"location: http://127.0.0.1:{inside.port}/"
        async with hook(reply("307 Temporary Redirect", location, "connection: close")) as there:
            ok(await pushed.put(there, max_deliver=1), 201)
            await pushed.publish("x")
            (dead,) = await eventually(pushed.dead_letters)
    assert dead["last_error"] == "answered 307 Temporary Redirect; redirects are not followed"
    assert inside.connections == 0


@pytest.mark.realtime("The service gives a receiver 15 s for its answer.")
async def test_what_is_under_way_at_a_pause_is_still_answered(pushed: Pushed) -> None:
    held = Held()
    async with hook(held) as there:
        ok(await pushed.put(there, max_in_flight=1), 201)
        await pushed.publish(1, 2)
        await eventually(lambda: there.requests)
        ok(await pushed.client.post(f"{pushed.path}/pause"))
        held.release()
        await eventually(partial(when, pushed, "acked"))
        stats = await pushed.stats()
        assert (stats["acked"], stats["lag"], stats["in_flight"]) == (1, 1, 0)
        ok(await pushed.client.post(f"{pushed.path}/resume"))
        await eventually(lambda: pushed.settled(2))
        assert (numbers(there), attempts(there)) == ([1, 2], [1, 1])


@pytest.mark.realtime("The service gives a receiver 15 s for its answer.")
async def test_one_that_is_deleted_and_made_anew_begins_anew(pushed: Pushed) -> None:
    held = Held()
    async with hook(held) as there:
        ok(await pushed.put(there), 201)
        await pushed.publish("old")
        await eventually(lambda: there.requests)
        ok(await pushed.client.delete(pushed.path), 204)
        ok(await pushed.put(there), 201)
        await pushed.publish("new")
        held.release()
        await eventually(lambda: pushed.settled(1))
        assert numbers(there) == ["old", "new"]


async def test_of_one_key_one_request_at_a_time_and_in_order(pushed: Pushed) -> None:
    under_way: Counter[str] = Counter()
    most: Counter[str] = Counter()
    done: defaultdict[str, list[int]] = defaultdict(list)

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, headers, body = there.requests[-1]
        message = json.loads(body)
        key = message["key"]
        under_way[key] += 1
        most[key] = max(most[key], under_way[key])
        most["all"] = max(most["all"], under_way.total())
        # The first one waits for a second, so keys overlap. All take a while, so others come if they may.
        if len(there.requests) == 1:
            await eventually(lambda: len(there.requests) > 1)
        await asyncio.sleep(0.05)
        under_way[key] -= 1
        fails = message["data"] % 7 == 3 and headers["gapless-attempt"] == "1"
        if not fails:
            done[key].append(message["data"])
        await (FAILING if fails else OK)(reader, writer)

    async with hook(slowly) as there:
        ok(await pushed.put(there, backoff=[0.05]), 201)
        keys = [f"k{n % 3}" for n in range(30)]
        await pushed.publish(*range(30), keys=keys)
        await eventually(lambda: pushed.settled(30))
    assert done == {f"k{n}": list(range(n, 30, 3)) for n in range(3)}
    assert [most[f"k{n}"] for n in range(3)] == [1, 1, 1]
    assert 1 < most["all"] <= 3


@pytest.mark.realtime("The service gives a receiver 15 s, within which a lease must be given back thrice.")
async def test_what_finds_no_connection_free_is_no_attempt(url: str) -> None:
    held = Held()
    async with http_client(url) as client, hook(held) as there:
        greedy, modest = named(client), named(client)
        ok(await greedy.put(there), 201)
        await greedy.publish(*range(MAX_CONNECTIONS_A_HOST))
        await eventually(lambda: in_flight(greedy, MAX_CONNECTIONS_A_HOST))
        ok(await modest.put(there, ack_wait=1, max_deliver=1), 201)
        await modest.publish("patient")
        # It is claimed, waits, and is given back, again and again: each claim is a lease of its own.
        given_back = 'gapless_webhooks_total{outcome="crowded"}'
        await eventually(lambda: at_least(client, given_back, 3))
        # The claim that finds one free has all the time that it needs.
        ok(await client.patch(modest.path, json={"ack_wait": LONG_S}))
        await eventually(partial(leased_long, modest))
        held.release()
        await eventually(lambda: modest.settled(1))
        await eventually(lambda: greedy.settled(MAX_CONNECTIONS_A_HOST))
        assert not await modest.dead_letters()
        for one in (greedy, modest):
            await client.delete(one.path)


async def leased_long(pushed: Pushed) -> bool:
    """Whether a message is held under a lease that no test waits for."""
    page = ok(await pushed.client.get(f"{pushed.path}/messages", params={"state": "leased"}))
    deadlines = [datetime.fromisoformat(message["deadline"]) for message in page["messages"]]
    return any(deadline > datetime.now(UTC) + timedelta(seconds=LONG_S / 2) for deadline in deadlines)


async def in_flight(pushed: Pushed, count: int) -> bool:
    return bool((await pushed.stats())["in_flight"] == count)


async def at_least(client: httpx.AsyncClient, metric: str, least: float) -> bool:
    lines = (await client.get("/metrics")).text.splitlines()
    return any(float(line.split()[-1]) >= least for line in lines if line.startswith(metric))


@pytest.mark.realtime("A receiver must be reached within the time that it has for its answer.")
async def test_no_answer_is_bounded_by_the_lease(pushed: Pushed) -> None:
    async with hook(silence) as there:
        ok(await pushed.put(there, ack_wait=2, max_deliver=2, backoff=[0]), 201)
        await pushed.publish("x")
        (dead,) = await eventually(pushed.dead_letters)
        assert dead["last_error"] == "gave no answer within 1.5 s"
        assert attempts(there) == [1, 2]


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]", "169.254.169.254", "localhost", "10.1.2.3"])
async def test_a_private_url_is_refused_where_it_is_defined(server_url: str, address: str) -> None:
    push = {"url": f"http://{address}/", "secret": SECRET}
    async with http_client(server_url) as client:
        answer = await client.put("/v1/subscriptions/inward", json={"channels": ["a"], "push": push})
    refused = ok(answer, 422)
    assert [error["field"] for error in refused["errors"]] == ["push.url"]


async def test_a_private_url_is_refused_when_it_is_sent_too(serve: Serve) -> None:
    open_service = serve(**ALLOW)
    async with hook(OK) as there:
        async with http_client(open_service.url) as client:
            pushed = named(client)
            ok(await pushed.put(there, max_deliver=1), 201)
        assert open_service.stop() == 0
        async with http_client(serve().url) as client:
            pushed.client = client
            await pushed.publish("x")
            (dead,) = await eventually(pushed.dead_letters)
    assert dead["last_error"].endswith("must not lead to a private, local or reserved address")
    assert there.connections == 0
