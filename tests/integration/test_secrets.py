"""No secret of a service or of its clients gets into logs, metrics, errors, arguments or settings."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import websockets

from app import launch
from tests.conftest import Database, Serve, service_environment
from tests.integration.test_keys import CHAT, bearer, make
from tests.integration.test_tickets import SECRET, file_of_keys, token
from tests.patience import PATIENCE_S, eventually, http_client, in_time

PIECE = 10
"""So many characters of a secret in a row give too much of it away."""


def pieces_in(secret: str, text: str) -> list[str]:
    pieces = (secret[at : at + PIECE] for at in range(len(secret) - PIECE + 1))
    return [piece for piece in pieces if piece in text]


def arguments_of(supervisor: int) -> str:
    """Those of a process and its children."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if supervisor in (int(folder.name), parent):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (ProcessLookupError, FileNotFoundError):
            continue
    assert len(found) >= 2, "a supervisor and a worker"
    return "\n".join(found)


async def say(url: str, *commands: dict[str, Any]) -> str:
    """The replies to commands over WebSocket, each with its number."""
    async with websockets.connect(url.replace("http", "ws") + "/v1/ws") as socket:
        for number, command in enumerate(commands, 1):
            await socket.send(json.dumps({"id": number, **command}))
        lines: list[str] = []
        while len(lines) < len(commands):
            lines += [line for line in str(await in_time(socket.recv())).split("\n") if '"id"' in line]
        return "\n".join(lines)


class Told:
    """What the service told, by where."""

    def __init__(self) -> None:
        self.by_place: dict[str, str] = {}

    def keep(self, answer: httpx.Response) -> None:
        asked = answer.request
        place = f"{asked.method} {asked.url.path} {answer.status_code} {len(self.by_place)}"
        self.by_place[place] = answer.text + str(answer.headers)

    def secrets_in(self, kept: dict[str, str]) -> dict[tuple[str, str], str]:
        """Those of which a part was told, each with the part."""
        return {
            (name, where): pieces[0]
            for name, secret in kept.items()
            for where, text in self.by_place.items()
            if (pieces := pieces_in(secret, text))
        }


def command(environment: dict[str, str], *arguments: str) -> str:
    """What a command of the installation prints."""
    done = subprocess.run(
        [*launch.command("app.cli"), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.stdout + done.stderr


async def ask_with(client: httpx.AsyncClient, told: Told, credential: str) -> None:
    """Good and bad requests."""
    for method, path in [
        ("GET", "/v1/whoami"),
        ("GET", "/v1/nowhere"),
        ("PATCH", "/v1/messages"),
        ("GET", "/v1/channels/chat.none"),
        ("POST", "/v1/channels/chat.a/messages"),
        ("GET", "/openapi.json"),
    ]:
        told.keep(await client.request(method, path, headers=bearer(credential)))
    body = {"name": "x", "grants": [{"actions": [credential]}], credential: 1}
    told.keep(await client.post("/v1/whoami", json=body, headers={"authorization": credential}))


async def ask_with_ticket(client: httpx.AsyncClient, told: Told, ticket: str) -> None:
    params = {"channel": "chat.a", "ticket": ticket}
    async with client.stream("GET", "/v1/subscribe", params=params) as answer:
        assert answer.status_code == 200
    for path in ("/v1/subscribe", "/v1/nowhere", "/v1/whoami", "/docs", "/metrics"):
        told.keep(await client.get(path, params=params))


async def define_webhooks(client: httpx.AsyncClient, told: Told, root: str, good: str, wrong: str) -> None:
    push = {"url": "http://127.0.0.1:9/hook", "secret": good}
    definition: dict[str, Any] = {"channels": ["chat.>"], "push": push}
    put = await client.put("/v1/subscriptions/chat.q", json=definition, headers=bearer(root))
    assert put.status_code == 201, put.text
    told.keep(put)
    for path in ("/v1/subscriptions/chat.q", "/v1/definitions", "/v1/keys"):
        told.keep(await client.get(path, headers=bearer(root)))
    for secret in ("*" + wrong, wrong + "*", [wrong], ""):
        bad = {"channels": ["chat.>"], "push": {**push, "secret": secret}}
        refused = await client.put("/v1/subscriptions/chat.r", json=bad, headers=bearer(root))
        assert refused.status_code == 422, refused.text
        told.keep(refused)


async def test_no_secret_is_told_to_anybody_who_does_not_have_it(
    serve: Serve, database: Database, redis_url: str, tmp_path: Path
) -> None:
    webhook_key = b64encode(secrets.token_bytes(64)).decode()
    (tmp_path / "webhook.keys").write_text(webhook_key)
    settings = {
        "GAPLESS_JWT_KEYS": str(file_of_keys(tmp_path)),
        "GAPLESS_WEBHOOK_KEYS": str(tmp_path / "webhook.keys"),
        "GAPLESS_LOG_LEVEL": "debug",
        "GAPLESS_WEBHOOK_ALLOW_PRIVATE": "1",
    }
    environment = service_environment(database, redis_url, tmp_path) | settings
    made = command(environment, "keys", "create", "root", "--operator")
    root = next(word for word in made.split() if word.startswith("gapless_"))
    service, told = serve(**settings), Told()
    webhook, wrong_webhook = (f"whsec_{b64encode(secrets.token_bytes(24)).decode()}" for _ in range(2))
    unknown = f"gapless_{secrets.token_hex(6)}_{secrets.token_hex(32)}"
    good_token = token(grants=CHAT)
    bad_token = good_token.rpartition(".")[0] + "." + secrets.token_urlsafe(32)
    async with http_client(service.url) as client:
        ann = (await make(client, "ann", CHAT, root))["key"]
        altered = ann.rpartition("_")[0] + "_" + secrets.token_hex(32)
        given = await client.post("/v1/tickets", json={"channels": ["chat.a"]}, headers=bearer(ann))
        ticket = given.json()["ticket"]
        for credential in (ann, unknown, altered, good_token, bad_token, ann[:-1], f"{ann}x"):
            await ask_with(client, told, credential)
        await ask_with_ticket(client, told, ticket)
        await define_webhooks(client, told, root, webhook, wrong_webhook)
        await client.post("/v1/channels/chat.a/messages", json={"data": 1}, headers=bearer(good_token))
        connect = [{"connect": {"token": each}} for each in (bad_token, unknown, good_token, altered)]
        told.by_place["websocket"] = await say(service.url, *connect, {"refresh": {"token": bad_token}})
        emulated = json.dumps({"id": 1, "connect": {"token": good_token}})
        told.keep(await client.get("/v1/ws/sse", params={"cf_connect": emulated}))

        async def tried() -> bool:
            told.by_place["metrics"] = (await client.get("/metrics", headers=bearer(root))).text
            return "gapless_webhooks_total{" in told.by_place["metrics"]

        await eventually(tried)
    told.by_place["arguments"] = arguments_of(service.process.pid)
    told.by_place["settings"] = command(environment, "doctor")
    assert "jwt_keys" in told.by_place["settings"]
    assert service.stop() == 0
    told.by_place["log"] = service.log
    assert '"level"' in told.by_place["log"]
    kept = {
        "the operator's key": root.rpartition("_")[2],
        "a key": ann.rpartition("_")[2],
        "an unknown key": unknown.rpartition("_")[2],
        "a wrong key": altered.rpartition("_")[2],
        "a token": good_token.rpartition(".")[2],
        "a wrong token": bad_token.rpartition(".")[2],
        "the key of tokens": json.loads(Path(settings["GAPLESS_JWT_KEYS"]).read_text())["keys"][0]["k"],
        "the key of tokens in hex": SECRET.hex(),
        "the key of webhooks": webhook_key,
        "a webhook's secret": webhook.removeprefix("whsec_"),
        "a wrong webhook's secret": wrong_webhook.removeprefix("whsec_"),
        "a ticket": ticket,
    }
    for url in (database.service_url, database.owner_url):
        if password := urlsplit(url).password:
            kept[f"a password of {urlsplit(url).username}"] = password
    assert told.secrets_in(kept) == {}
