"""Webhook secrets in the database: encrypted with keys of the service, and readable with them alone."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from standardwebhooks import Webhook

from app.faces.webhooks.secrets import WebhookSecrets
from tests.conftest import Serve
from tests.hook import SECRET, Hook, hook, reply
from tests.patience import eventually, http_client

OLD, NEW = b"o" * 64, b"n" * 64
OK = reply("200 OK", "connection: close")


async def stored(owner: asyncpg.Connection) -> str:
    found: str = await owner.fetchval("select own -> 'push' ->> 'secret' from gapless.subscriptions")
    return found


async def put(client: httpx.AsyncClient, there: Hook) -> int:
    push = {"url": there.target().url, "secret": SECRET}
    body = {"channels": ["q"], "push": push, "start": "earliest"}
    return (await client.put("/v1/subscriptions/q", json=body)).status_code


async def test_they_are_encrypted_with_the_first_key_and_read_with_each(
    serve: Serve, owner: asyncpg.Connection, tmp_path: Path
) -> None:
    file = tmp_path / "webhook.keys"

    def start(*keys: bytes) -> Any:
        file.write_bytes(b"\n".join(map(b64encode, keys)))
        more = {"GAPLESS_WEBHOOK_KEYS": str(file)} if keys else {}
        return serve(GAPLESS_WEBHOOK_ALLOW_PRIVATE="1", **more)

    async def posted(there: Hook, service: Any, data: str) -> None:
        """It is posted, and signed with the secret."""
        async with http_client(service.url) as client:
            answer = await client.post("/v1/channels/q/messages", json={"data": data})
            assert answer.status_code == 201

        async def came() -> bool:
            return data in [json.loads(body)["data"] for _, _, body in there.requests]

        await eventually(came)
        _, headers, body = there.requests[-1]
        Webhook(SECRET).verify(body, dict(headers))

    async def becomes(text: str) -> None:
        async def is_so() -> bool:
            return await stored(owner) == text

        await eventually(is_so)

    async with hook(OK) as there:
        service = start()
        async with http_client(service.url) as client:
            assert await put(client, there) == 201
        assert await stored(owner) == SECRET
        await posted(there, service, "plain")
        for keys in [(OLD,), (NEW, OLD)]:
            service.kill()
            service = start(*keys)
            await becomes(WebhookSecrets(keys[0]).encrypt(SECRET))
            await posted(there, service, f"{keys}")
            async with http_client(service.url) as client:
                assert await put(client, there) == 200, "the same definition"
        service.kill()
        service = start(OLD)
        async with http_client(service.url) as client:
            await client.post("/v1/channels/q/messages", json={"data": "waits"})
            await eventually(lambda: "which is not here" in service.log)
            stats = (await client.get("/v1/subscriptions/q")).json()["stats"]
            assert stats["lag"] > 0
            assert stats["dead_letters"] == 0
        service.kill()
        await posted(there, start(NEW), "goes on")
        assert [json.loads(body)["data"] for _, _, body in there.requests].count("waits") == 1


def test_a_file_that_cannot_be_used_is_said_at_the_start(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "webhook.keys"
    file.write_text("no key")
    with pytest.raises(AssertionError, match=r"GAPLESS_WEBHOOK_KEYS: .* each line must be the base64"):
        serve(GAPLESS_WEBHOOK_KEYS=str(file))
