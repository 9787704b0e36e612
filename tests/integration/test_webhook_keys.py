"""A webhook is posted to for whoever defined it: as long as their credential is good."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.conftest import Serve
from tests.hook import SECRET, Hook, hook, reply
from tests.integration.test_keys import EVERYTHING, bearer, make
from tests.patience import eventually, http_client
from tests.support import RunningService

OK = reply("200 OK", "connection: close")


async def put(client: httpx.AsyncClient, there: Hook, key: str | None = None, path: str = "q") -> int:
    push = {"url": there.target().url, "secret": SECRET}
    body = {"channels": ["q"], "push": push, "start": "earliest"}
    headers = bearer(key) if key else {}
    return (await client.put(f"/v1/subscriptions/{path}", json=body, headers=headers)).status_code


async def publish(client: httpx.AsyncClient, data: Any, key: str) -> None:
    answer = await client.post("/v1/channels/q/messages", json={"data": data}, headers=bearer(key))
    assert answer.status_code == 201


def posted(there: Hook) -> list[Any]:
    return [json.loads(body)["data"] for _, _, body in there.requests]


def who_said(service: RunningService, text: str) -> set[int]:
    """The processes that logged this."""
    return {json.loads(line)["pid"] for line in service.log.splitlines() if text in line}


async def test_it_waits_when_the_key_is_revoked_and_goes_on_for_another_one(serve: Serve) -> None:
    service = serve("--workers", "2", GAPLESS_WEBHOOK_ALLOW_PRIVATE="1")
    async with http_client(service.url) as client, hook(OK) as there, hook(OK) as older:
        assert await put(client, older, path="older") == 201
        ops = (await make(client, "ops", EVERYTHING))["key"]
        hooks = await make(client, "hooks", EVERYTHING, by=ops)
        assert await put(client, there, hooks["key"]) == 201
        await publish(client, 1, ops)
        await eventually(lambda: posted(there) == [1] == posted(older))

        assert (await client.delete(f"/v1/keys/{hooks['id']}", headers=bearer(ops))).status_code == 204
        # The other worker may see it a moment later, and posts until then.
        await eventually(lambda: len(who_said(service, "the credential of hooks, who defined it")) == 2)
        await publish(client, 2, ops)
        # What was defined without a credential is posted on.
        await eventually(lambda: posted(older) == [1, 2])
        shown = (await client.get("/v1/subscriptions/q", headers=bearer(ops))).json()
        assert posted(there) == [1]
        assert (shown["stats"]["lag"], shown["stats"]["dead_letters"]) == (1, 0)
        assert set(shown["push"]) == {"url"}

        assert await put(client, there, ops) == 200, "the definition is equal"
        await eventually(lambda: posted(there) == [1, 2])


async def test_a_patch_and_an_import_are_of_who_asks(serve: Serve) -> None:
    service = serve(GAPLESS_WEBHOOK_ALLOW_PRIVATE="1")
    async with http_client(service.url) as client, hook(OK) as there:
        ops = (await make(client, "ops", EVERYTHING))["key"]
        url = there.target().url

        async def bring(key: str) -> Any:
            push = {"url": url, "secret": SECRET}
            entry = {"name": "q", "channels": ["q"], "start": "earliest", "push": push}
            document = {"version": 1, "subscriptions": [entry]}
            answer = await client.post("/v1/definitions", json=document, headers=bearer(key))
            assert answer.status_code == 200, answer.text
            return answer.json()

        first = await make(client, "first", EVERYTHING, by=ops)
        assert (await bring(first["key"]))["created"] == ["subscription:q"]
        assert (await bring(first["key"]))["unchanged"] == 1
        for how in ("import", "patch"):
            await client.delete(f"/v1/keys/{first['id']}", headers=bearer(ops))
            await publish(client, how, ops)
            another = await make(client, how, EVERYTHING, by=ops)
            if how == "import":
                assert (await bring(another["key"]))["updated"] == ["subscription:q"]
            else:
                path, body = "/v1/subscriptions/q", {"push": {"url": url}}
                answer = await client.patch(path, json=body, headers=bearer(another["key"]))
                assert answer.status_code == 200
            await comes(there, how)
            first = another


async def comes(there: Hook, data: str) -> None:
    await eventually(lambda: data in posted(there))


async def test_who_may_not_read_the_channels_leads_their_messages_nowhere(serve: Serve) -> None:
    service = serve(GAPLESS_WEBHOOK_ALLOW_PRIVATE="1")
    async with http_client(service.url) as client, hook(OK) as there:
        ops = (await make(client, "ops", EVERYTHING))["key"]
        assert await put(client, there, ops) == 201
        grants = [{"actions": ["manage", "publish"], "subscriptions": ["q"], "channels": ["mine"]}]
        manager = (await make(client, "manager", grants, by=ops))["key"]

        async def patch(key: str, **body: Any) -> int:
            answer = await client.patch("/v1/subscriptions/q", json=body, headers=bearer(key))
            return answer.status_code

        push, route = {"url": there.target(path="/mine").url}, {"channel": "mine"}
        assert await patch(manager, push=push) == 403
        assert await patch(manager, dead_letter=route) == 403
        assert await patch(manager, max_deliver=3) == 200
        assert await patch(ops, push=push, dead_letter={"channel": "mine"}) == 200
