"""Messages that wait for their time, over HTTP and two hosts."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from tests.conftest import Serve
from tests.integration.queueing import Host, data
from tests.integration.test_keys import EVERYTHING, bearer, make
from tests.patience import eventually, http_client

Both = tuple[Host, Host]


async def schedule(host: Host, channel: str, content: Any, **when: Any) -> dict[str, Any]:
    """The answer, which says that it is to be published later."""
    body = {"data": content, **when}
    answer: dict[str, Any] = await host.ask("POST", f"/v1/channels/{channel}/messages", 202, json=body)
    assert answer["channel"] == channel
    assert answer["scheduled_id"].isdigit()
    return answer


def ahead(seconds: float) -> str:
    """A time so far ahead, as a client writes it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


async def history(host: Host, channel: str) -> list[Any]:
    answer = await host.http.get(f"/v1/channels/{channel}/messages")
    messages: list[Any] = answer.json().get("messages", [])
    return messages


async def waiting(host: Host, channel: str) -> list[Any]:
    page = await host.ask("GET", "/v1/scheduled", params={"channel": channel})
    return [each["data"] for each in page["scheduled"]]


async def let_be_due(owner: asyncpg.Connection, channel: str) -> datetime:
    """As if the time of all that waits for this channel had come; that time."""
    moved = (
        "update gapless.scheduled set deliver_at = clock_timestamp() where channel = $1 returning deliver_at"
    )
    times: list[datetime] = [row["deliver_at"] for row in await owner.fetch(moved, channel)]
    return min(times)


async def test_what_is_due_is_published_once(hosts: Both) -> None:
    """Both hosts look for what is due, and one publishes it."""
    one, two = hosts
    queue = await one.subscribe("due")
    for number in range(10):
        await schedule(hosts[number % 2], "due", number, deliver_at=ahead(0.5 + number / 1000))
    await schedule(one, "due", "later", delay=3600)
    assert (await waiting(two, "due"))[-1] == "later"
    taken = await queue.at(two).take(10)
    assert sorted(data(taken)) == list(range(10))
    assert [delivery["message"]["seq"] for delivery in taken] == list(range(1, 11))
    assert await waiting(one, "due") == ["later"]
    assert len(await history(one, "due")) == 10


async def test_it_arrives_as_it_was_sent(hosts: Both, sql: asyncpg.Connection) -> None:
    one, _ = hosts
    queue = await one.subscribe("whole")
    sent = {"data": {"a": [1]}, "key": "k", "type": "t", "headers": {"h": "1"}, "ttl": 3600, "delay": 600}
    answer = await one.ask("POST", "/v1/channels/whole/messages", 202, json=sent)
    shown = await one.ask("GET", f"/v1/scheduled/{answer['scheduled_id']}")
    expected = {name: value for name, value in sent.items() if name != "delay"}
    assert {name: shown[name] for name in expected} == expected
    assert shown["deliver_at"] == answer["deliver_at"]
    due = await let_be_due(sql, "whole")
    (delivery,) = await queue.take(1)
    message = delivery["message"]
    assert {name: message[name] for name in ("data", "key", "type", "headers")} == {
        name: sent[name] for name in ("data", "key", "type", "headers")
    }
    # Its life begins when it is published.
    created, expires = (datetime.fromisoformat(message[n]) for n in ("created_at", "expires_at"))
    assert created >= due
    assert expires - created == timedelta(hours=1)
    await one.ask("GET", f"/v1/scheduled/{answer['scheduled_id']}", 404)


async def test_what_is_cancelled_never_comes(hosts: Both, sql: asyncpg.Connection) -> None:
    one, two = hosts
    queue = await one.subscribe("cancelled")
    first = await schedule(one, "cancelled", 1, delay=600)
    await schedule(one, "cancelled", 2, delay=600)
    await two.ask("DELETE", f"/v1/scheduled/{first['scheduled_id']}", 204)
    refused = await one.ask("DELETE", f"/v1/scheduled/{first['scheduled_id']}", 404)
    assert refused["code"] == "message_not_found"
    assert refused["detail"] == f"scheduled message not found: {first['scheduled_id']}"
    await two.ask("POST", f"/v1/scheduled/{first['scheduled_id']}/promote", 404)
    await let_be_due(sql, "cancelled")
    assert data(await queue.take(1)) == [2]
    assert [message["data"] for message in await history(one, "cancelled")] == [2]


async def test_what_is_promoted_gets_its_place_now(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("promoted")
    answer = await schedule(one, "promoted", "early", delay=3600)
    await one.publish("promoted", "before")
    pulling = asyncio.create_task(queue.at(two).take(2))
    position = await two.ask("POST", f"/v1/scheduled/{answer['scheduled_id']}/promote")
    assert (position["channel"], position["seq"]) == ("promoted", 2)
    taken = await pulling
    if len(taken) == 1:
        taken += await queue.take(1)
    assert data(taken) == ["before", "early"]
    assert taken[1]["message"]["id"] == position["id"]
    assert taken[1]["message"]["created_at"] == position["created_at"]
    results = await asyncio.gather(
        *[
            host.http.post(f"/v1/scheduled/{answer['scheduled_id']}/promote")
            for host in hosts
            for _ in range(3)
        ]
    )
    assert {result.status_code for result in results} == {404}


async def test_of_many_who_promote_one_does(hosts: Both) -> None:
    one, _ = hosts
    answer = await schedule(one, "raced", 1, delay=3600)
    path = f"/v1/scheduled/{answer['scheduled_id']}"
    asking = [host.http.post(f"{path}/promote") for host in hosts for _ in range(5)]
    asking += [host.http.delete(path) for host in hosts]
    statuses = sorted(answer.status_code for answer in await asyncio.gather(*asking))
    assert statuses[1:] == [404] * 11
    assert len(await history(one, "raced")) == (statuses[0] == 200)


async def test_a_repetition_schedules_nothing_more(hosts: Both) -> None:
    one, two = hosts
    body = {"data": 1, "delay": 3600}
    keyed = {"Idempotency-Key": "scheduled.key"}
    first = await one.ask("POST", "/v1/channels/repeated/messages", 202, json=body, headers=keyed)
    again = await two.http.post("/v1/channels/repeated/messages", json=body, headers=keyed)
    assert (again.status_code, again.json()) == (202, first)
    assert again.headers["idempotent-replayed"] == "true"
    assert await waiting(one, "repeated") == [1]
    other = {"data": 2, "delay": 3600}
    await one.ask("POST", "/v1/channels/repeated/messages", 422, json=other, headers=keyed)


async def test_what_is_due_already_is_answered_the_same_and_published_at_once(hosts: Both) -> None:
    one, _ = hosts
    for when in ({"delay": 0}, {"deliver_at": "2020-01-01T00:00:00Z"}):
        answer = await one.ask("POST", "/v1/channels/past/messages", 202, json={"data": 1, **when})
        assert set(answer) == {"scheduled_id", "channel", "deliver_at"}

    async def published() -> bool:
        return len(await history(one, "past")) == 2

    await eventually(published)
    refused = (
        [{"data": 1, "delay": 5}, {"data": 2}],
        {"data": 1, "delay": 5, "deliver_at": ahead(5)},
        {"data": 1, "delay": 5, "ephemeral": True},
        {"data": 1, "delay": -1},
        {"data": 1, "delay": 400_000_000},
        {"data": 1, "deliver_at": ahead(11 * 365 * 86_400)},
        {"data": 1, "deliver_at": "tomorrow"},
    )
    for body in refused:
        await one.ask("POST", "/v1/channels/past/messages", 422, json=body)
    expecting = {"Expected-Last-Seq": "2"}
    body = {"data": 1, "delay": 5}
    await one.ask("POST", "/v1/channels/past/messages", 422, json=body, headers=expecting)
    await one.ask("POST", "/v1/messages", 422, json={"messages": [{"channel": "past", **body}]})


async def test_it_survives_restarts_and_comes_in_order(serve: Serve, owner: asyncpg.Connection) -> None:
    first = serve()
    async with Host(first.url) as host:
        soon = datetime.now(UTC) + timedelta(minutes=30)
        for number in (3, 1, 2, 0):
            at = (soon + timedelta(milliseconds=number)).isoformat()
            await schedule(host, "kept", number, deliver_at=at)
        await schedule(host, "kept", "late", delay=7200)
        assert await history(host, "kept") == []
        first.kill()
    await owner.execute("update gapless.scheduled set deliver_at = deliver_at - interval '1 hour'")
    async with Host(serve().url) as host:

        async def published() -> list[Any]:
            messages = await history(host, "kept")
            return messages if len(messages) == 4 else []

        assert [message["data"] for message in await eventually(published)] == [0, 1, 2, 3]
        assert await waiting(host, "kept") == ["late"]


async def test_an_array_is_scheduled_as_a_whole(hosts: Both) -> None:
    one, two = hosts
    queue = await one.subscribe("several")
    path, key = "/v1/channels/several/messages", {"Idempotency-Key": "several"}
    body = [{"data": 1, "delay": 0.5}, {"data": 2, "deliver_at": ahead(3600)}, {"data": 3, "delay": 0}]
    answer = await one.ask("POST", path, 202, json=body, headers=key)
    ids = [each["scheduled_id"] for each in answer["messages"]]
    assert ids == sorted(set(ids), key=int)
    assert {each["channel"] for each in answer["messages"]} == {"several"}
    assert await two.ask("POST", path, 202, json=body, headers=key) == answer
    assert data(await queue.take(1) + await queue.take(1)) == [3, 1]
    assert await waiting(two, "several") == [2]
    await two.ask("DELETE", f"/v1/scheduled/{ids[1]}", 204)
    mixed = [{"data": 1, "delay": 5}, {"data": 2}]
    refused = await one.ask("POST", path, 422, json=mixed)
    assert refused["errors"][0]["field"] == "[1].deliver_at"
    await one.ask(
        "POST", path, 422, json=[{"data": 1, "delay": 5}, {"data": 2, "delay": 5, "ephemeral": True}]
    )
    await one.ask("POST", path, 422, json=[{"data": 1, "delay": 5}], headers={"Expected-Last-Seq": "0"})
    assert await waiting(one, "several") == []
    (only,) = (await one.ask("POST", path, 202, json=[{"data": 1, "delay": 60}]))["messages"]
    assert (await one.ask("GET", f"/v1/scheduled/{only['scheduled_id']}"))["data"] == 1


async def test_a_change_is_made_when_it_is_due(hosts: Both, sql: asyncpg.Connection) -> None:
    one, two = hosts
    path = "/v1/channels/edited/messages"
    target = (await one.ask("POST", path, 201, json={"data": "a"}))["id"]
    bodies = [
        {"target": target, "action": "annotate", "annotation": "like", "mode": "unique", "delay": 60},
        {"target": target + 5, "action": "delete", "delay": 60},
        {"data": "b", "target": target, "action": "update", "delay": 60},
    ]
    answer = await one.ask("POST", path, 202, json=bodies)
    ids = [each["scheduled_id"] for each in answer["messages"]]
    for body, each in zip(bodies, ids, strict=True):
        shown = await two.ask("GET", f"/v1/scheduled/{each}")
        assert {**body, **shown} == {**shown, "delay": 60}
    await let_be_due(sql, "edited")

    async def is_edited() -> bool:
        (now,) = (await two.http.get(path, params={"view": "latest"})).json()["messages"]
        return (now["data"], now["annotations"]) == ("b", {"like": {"unique": 1}})

    await eventually(is_edited)
    one_left = f"/v1/scheduled/{ids[1]}"
    shown = await two.ask("GET", one_left)
    assert (shown["withheld"], shown["refused"], shown["target"]) == (True, "message_not_found", target + 5)
    assert (await two.http.post(f"{one_left}/promote")).json()["code"] == "message_not_found"
    assert (await two.http.delete(one_left)).status_code == 204


async def test_a_change_with_the_version_that_its_target_had(hosts: Both, sql: asyncpg.Connection) -> None:
    one, _ = hosts
    path = "/v1/channels/versions/messages"
    target = (await one.ask("POST", path, 201, json={"data": "a"}))["id"]
    body = {"data": "b", "target": target, "action": "update", "delay": 60}
    headers = {"Expected-Version": str(target)}
    left = [(await one.ask("POST", path, 202, json=body, headers=headers))["scheduled_id"] for _ in range(2)]
    await let_be_due(sql, "versions")

    async def is_refused() -> bool:
        answers = [await one.http.get(f"/v1/scheduled/{each}") for each in left]
        return [answer.json().get("refused") for answer in answers] == [None, "version_mismatch"]

    await eventually(is_refused)
    assert [each["data"] for each in await history(one, "versions")] == ["a", "b"]


async def test_a_revoked_key_s_messages_wait_for_somebody_to_promote_them(
    serve: Serve, owner: asyncpg.Connection
) -> None:
    async with http_client(serve().url) as client:
        root = await make(client, "root", EVERYTHING)
        client.headers.update(bearer(root["key"]))
        sender = await make(client, "sender", EVERYTHING)
        body = {"data": 1, "delay": 3600}
        path = "/v1/channels/later/messages"
        answer = await client.post(path, json=body, headers=bearer(sender["key"]))
        one = f"/v1/scheduled/{answer.json()['scheduled_id']}"
        assert "withheld" not in (await client.get(one)).json()
        assert (await client.delete(f"/v1/keys/{sender['id']}")).status_code == 204
        await let_be_due(owner, "later")

        async def is_withheld() -> bool:
            return (await client.get(one)).json().get("withheld") is True

        await eventually(is_withheld)
        assert (await client.get(path)).status_code == 404
        assert (await client.post(f"{one}/promote")).status_code == 200
        (published,) = (await client.get(path)).json()["messages"]
        assert (published["data"], published["sender"]) == (1, "sender")
