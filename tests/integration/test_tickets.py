"""Tickets and tokens against a running service."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
import websockets

from app.embedded import EmbeddedPostgres
from tests.conftest import External, Serve, service_of_its_own
from tests.integration.test_keys import CHAT, EVERYTHING, bearer, events, make, read_on, said_goodbye, status
from tests.patience import PATIENCE_S, eventually, http_client, in_time

SECRET = secrets.token_bytes(32)


def file_of_keys(folder: Path) -> Path:
    """The file of `GAPLESS_JWT_KEYS`."""
    path = folder / "keys.json"
    jwk = {"kty": "oct", "kid": "one", "k": urlsafe_b64encode(SECRET).rstrip(b"=").decode()}
    path.write_text(json.dumps({"keys": [jwk]}))
    return path


def token(seconds: float = 600, **claims: Any) -> str:
    body = {"sub": "ann", "exp": int(time.time() + seconds), "grants": CHAT, **claims}
    return jwt.encode(body, SECRET, "HS256", headers={"kid": "one"})


@pytest.fixture(scope="module")
def signed(
    postgres: EmbeddedPostgres | External, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Where a service is that knows whose tokens are good. Many tests share it."""
    home = tmp_path_factory.mktemp("signed")
    keys = str(file_of_keys(home))
    with service_of_its_own(postgres, redis_url, home, GAPLESS_JWT_KEYS=keys) as (url, _):
        yield url


async def test_a_ticket_opens_one_stream_of_what_it_is_for(serve: Serve) -> None:
    service = serve("--workers", "2")
    async with http_client(service.url) as client:
        root = (await make(client, "root", EVERYTHING))["key"]
        ann = await make(client, "ann", CHAT, root)
        queue = {"channels": ["chat.>"]}
        await client.put("/v1/subscriptions/chat.q", json=queue, headers=bearer(root))

        async def ticket(**body: Any) -> str:
            answer = await client.post("/v1/tickets", json=body, headers=bearer(ann["key"]))
            assert answer.status_code == 201, answer.text
            assert answer.headers["cache-control"] == "no-store"
            found: str = answer.json()["ticket"]
            return found

        async def opened(path: str) -> Any:
            """The status of a stream, which is not read."""
            async with client.stream("GET", path) as answer:
                return answer.status_code

        once = await ticket(channels=["chat.a"])
        path = f"/v1/subscribe?channel=chat.a&ticket={once}"
        found = await asyncio.gather(*(opened(path) for _ in range(8)))
        assert sorted(found) == [200, *[401] * 7]
        narrow = await ticket(channels=["chat.a"])
        assert await opened(f"/v1/subscribe?channel=chat.b&ticket={narrow}") == 403
        assert await opened(f"/v1/subscribe?channel=chat.a&ticket={narrow}") == 401, "used up"
        for body, code in (
            ({"channels": ["other"]}, (403, "forbidden")),
            ({"subscription": "other"}, (403, "forbidden")),
            ({"channels": []}, (422, "invalid_request")),
            ({"channels": ["a..b"]}, (422, "invalid_request")),
            ({"channel": ["chat.a"]}, (422, "invalid_request")),
        ):
            assert await status(client, "POST", "/v1/tickets", ann["key"], json=body) == code
        of_queue = await ticket(subscription="chat.q")
        await client.post("/v1/channels/chat.a/messages", json={"data": 0}, headers=bearer(root))
        async with events(client, f"/v1/subscriptions/chat.q/consume?ticket={of_queue}", None) as member:
            await eventually(lambda: len(member) > 1)
        of_any = await ticket()
        async with events(client, f"/v1/subscribe?channel=%3E&ticket={of_any}", None) as stream:
            sent = await client.post("/v1/channels/chat.a/messages", json={"data": 1}, headers=bearer(root))
            await eventually(lambda: any(f'"id":{sent.json()["id"]}' in line for line in stream))
            assert (await client.delete(f"/v1/keys/{ann['id']}", headers=bearer(root))).status_code == 204
            await eventually(lambda: said_goodbye(stream))


async def test_a_ticket_of_an_open_installation(serve: Serve) -> None:
    """A page works alike before there are credentials."""
    async with http_client(serve().url) as client:
        ticket = (await client.post("/v1/tickets", json={"channels": ["a"]})).json()["ticket"]
        async with events(client, f"/v1/subscribe?channel=a&ticket={ticket}", None) as stream:
            await client.post("/v1/channels/a/messages", json={"data": 1})
            await eventually(lambda: any('"data":1' in line for line in stream))
            await make(client, "root", EVERYTHING)
            await eventually(lambda: said_goodbye(stream))


async def test_a_token_is_good_until_it_expires(signed: str) -> None:
    async with http_client(signed) as client:
        assert await status(client, "GET", "/v1/whoami", None) == (401, "unauthenticated")
        who = await client.get("/v1/whoami", headers=bearer(token()))
        assert (who.json()["subject"], who.json()["namespace"]) == ("ann", "default")
        sent = await client.post("/v1/channels/chat.a/messages", json={"data": 1}, headers=bearer(token()))
        assert sent.status_code == 201
        other = {"json": {"data": 1}}
        assert await status(client, "POST", "/v1/channels/b/messages", token(), **other) == (403, "forbidden")
        assert await status(client, "GET", "/v1/keys", token()) == (403, "forbidden")
        forged = jwt.encode({"sub": "ann", "exp": int(time.time()) + 60}, b"x" * 32, "HS256", {"kid": "one"})
        for bad in (forged, token(-1), token(90_000), f"{token()}x", "a.b.c"):
            assert await status(client, "GET", "/v1/whoami", bad) == (401, "unauthenticated")


async def test_it_stays_closed_without_the_settings(serve: Serve, tmp_path: Path) -> None:
    first = serve(GAPLESS_JWT_KEYS=str(file_of_keys(tmp_path)))
    async with http_client(first.url) as client:
        assert await status(client, "GET", "/v1/whoami", token()) == (200, None)
    first.stop()
    async with http_client(serve().url) as client:
        assert await status(client, "GET", "/v1/whoami", None) == (401, "unauthenticated")


class Client:
    """One that speaks the client protocol, over a WebSocket."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._id = 0
        self._lines: list[str] = []

    async def _next(self) -> Any:
        if not self._lines:
            self._lines = (await in_time(self._socket.recv())).split("\n")
        return json.loads(self._lines.pop(0))

    async def send(self, **command: Any) -> None:
        self._id += 1
        await self._socket.send(json.dumps({"id": self._id, **command}))

    async def ask(self, **command: Any) -> Any:
        await self.send(**command)
        while True:
            said = await self._next()
            if said.get("id") == self._id:
                return said

    async def refused(self, **command: Any) -> int:
        code: int = (await self.ask(**command))["error"]["code"]
        return code

    async def pushed(self, member: str) -> Any:
        while True:
            said = (await self._next()).get("push", {})
            if member in said:
                return said[member]

    async def ended(self) -> tuple[int, str]:
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await in_time(read_on(self._socket))
        assert closed.value.rcvd is not None
        return closed.value.rcvd.code, closed.value.rcvd.reason


@asynccontextmanager
async def connected(url: str, headers: dict[str, str] | None = None) -> AsyncIterator[Client]:
    address = url.replace("http", "ws") + "/v1/ws"
    async with websockets.connect(address, additional_headers=headers) as socket:
        yield Client(socket)


PUBLISH = {"channel": "chat.a", "data": 1}


async def test_a_client_sends_its_credential_with_connect(signed: str) -> None:
    async with connected(signed) as stranger:
        assert await stranger.refused(publish=PUBLISH) == 101
        assert await stranger.refused(connect={}) == 101
        assert await stranger.refused(connect={"token": "what"}) == 101
        assert await stranger.refused(connect={"token": token(-1)}) == 109
        assert await stranger.refused(connect={"token": token(grants=[])}) == 103
        assert await stranger.refused(history={"channel": "chat.a"}) == 101
        about = (await stranger.ask(connect={"token": token(600)}))["connect"]
        assert (about["expires"], 590 <= about["ttl"] <= 600) == (True, True)
        assert (await stranger.ask(publish=PUBLISH))["publish"]["seq"] >= 1
        assert await stranger.refused(publish={"channel": "other", "data": 1}) == 103
        assert await stranger.refused(subscribe={"channel": "other"}) == 103
        assert await stranger.refused(subscribe={"channel": "chat.a", "token": "of its own"}) == 101
        assert await stranger.refused(sub_refresh={"channel": "chat.a", "token": token()}) == 102
        found = (await stranger.ask(history={"channel": "chat.a", "limit": 1}))["history"]["publications"]
        assert found[0]["sender"] == "ann"


async def test_a_client_renews_its_token_and_goes_on(signed: str) -> None:
    async with connected(signed) as client:
        await client.ask(connect={"token": token(60), "subs": {"chat.a": {}}})
        assert await client.refused(refresh={"token": token(-1)}) == 109
        assert await client.refused(refresh={"token": "what"}) == 101
        about = (await client.ask(refresh={"token": token(600)}))["refresh"]
        assert 590 <= about["ttl"] <= 600
    async with connected(signed) as client:
        await client.ask(connect={"token": token()})
        more = [{"actions": ["publish"], "channels": ["chat.>", "more"]}]
        await client.send(refresh={"token": token(grants=more)})
        assert await client.ended() == (3005, "connection expired"), "it comes again with the new grants"
    async with connected(signed) as client:
        await client.ask(connect={"token": token()})
        await client.send(refresh={"token": token(sub="bob")})
        assert await client.ended() == (3500, "invalid token")


def of_channel(channel: str, seconds: float = 600, **claims: Any) -> str:
    """A token of Centrifugo for one subscription."""
    body = {"sub": "ann", "exp": int(time.time() + seconds), "channel": channel, **claims}
    return jwt.encode(body, SECRET, "HS256", headers={"kid": "one"})


async def test_a_subscription_has_a_token_of_its_own(signed: str) -> None:
    async with connected(signed) as client:
        await client.ask(connect={"token": token()})
        assert await client.refused(subscribe={"channel": "other"}) == 103, "not by the connection's token"
        for bad, code in (
            (of_channel("another"), 103),
            (of_channel("other", sub="bob"), 103),
            (of_channel("other", ns="acme"), 103),
            (of_channel("other", seconds=-1), 109),
            (of_channel("other.>"), 101),
            (of_channel("other", grants=[]), 103),
        ):
            assert await client.refused(subscribe={"channel": "other", "token": bad}) == code
        said = (await client.ask(subscribe={"channel": "other", "token": of_channel("other", 100)}))[
            "subscribe"
        ]
        assert (said["expires"], 90 <= said["ttl"] <= 99) == (True, True)
        for bad, code in ((of_channel("another"), 103), (of_channel("other", -1), 109), ("what", 101)):
            assert await client.refused(sub_refresh={"channel": "other", "token": bad}) == code
        renewed = (await client.ask(sub_refresh={"channel": "other", "token": of_channel("other")}))[
            "sub_refresh"
        ]
        assert (renewed["expires"], 590 <= renewed["ttl"] <= 599) == (True, True)
        await client.ask(unsubscribe={"channel": "other"})
        assert await client.refused(sub_refresh={"channel": "other", "token": of_channel("other")}) == 102


async def test_a_subscription_whose_token_grants_other_channels_begins_again(signed: str) -> None:
    narrow, wide = ([{"actions": ["subscribe"], "channels": [of]}] for of in ("room.a.>", "room.>"))
    async with connected(signed) as client:
        await client.ask(connect={"token": token()})
        await client.ask(subscribe={"channel": "room.>", "token": token(grants=narrow)})
        await client.ask(sub_refresh={"channel": "room.>", "token": token(grants=narrow)})
        await client.send(sub_refresh={"channel": "room.>", "token": token(grants=wide)})
        assert (await client.pushed("unsubscribe"))["code"] == 2500
        assert "subscribe" in await client.ask(subscribe={"channel": "room.>", "token": token(grants=wide)})


@pytest.mark.realtime("tokens expire by the clock of the machine")
async def test_a_subscription_ends_with_its_own_token_unless_it_is_renewed(
    serve: Serve, tmp_path: Path
) -> None:
    url = serve(GAPLESS_JWT_KEYS=str(file_of_keys(tmp_path))).url
    async with connected(url) as client:
        await client.ask(connect={"token": token()})
        await client.ask(subscribe={"channel": "kept", "token": of_channel("kept", 3)})
        await client.ask(subscribe={"channel": "ended", "token": of_channel("ended", 3)})
        await client.ask(sub_refresh={"channel": "kept", "token": of_channel("kept")})
        assert await client.pushed("unsubscribe") == {"code": 2501, "reason": "subscription expired"}
        assert await client.refused(subscribe={"channel": "kept", "token": of_channel("kept")}) == 105
        assert "subscribe" in await client.ask(subscribe={"channel": "ended", "token": of_channel("ended")})


async def test_a_key_is_good_as_a_token_and_where_no_websocket_passes(serve: Serve) -> None:
    url = serve().url
    async with http_client(url) as client:
        root = (await make(client, "root", EVERYTHING))["key"]
        key = (await make(client, "ann", CHAT, root))["key"]
        async with connected(url) as one, connected(url, bearer(key)) as other:
            about = (await one.ask(connect={"token": key}))["connect"]
            assert "expires" not in about
            assert (await other.ask(connect={}))["connect"]["client"]
            assert (await other.ask(publish=PUBLISH))["publish"]["seq"] >= 1
        connect = {"id": 1, "connect": {"token": key}}
        async with client.stream("POST", "/v1/ws/http_stream", json=connect, timeout=PATIENCE_S) as stream:
            lines = stream.aiter_lines()
            about = json.loads(await in_time(anext(lines)))["connect"]
            commands = json.dumps({"id": 2, "publish": PUBLISH})
            body = {"session": about["session"], "node": about["node"], "data": commands}
            passed = await client.post("/v1/ws/emulation", json=body)
            assert passed.status_code == 204
            assert json.loads(await in_time(anext(lines)))["publish"]["seq"] == 2


@pytest.mark.realtime("tokens expire by the clock of the machine")
async def test_what_a_token_opened_ends_when_it_expires(serve: Serve, tmp_path: Path) -> None:
    url = serve(GAPLESS_JWT_KEYS=str(file_of_keys(tmp_path))).url
    async with http_client(url) as client, connected(url) as ending, connected(url) as renewing:
        short = token(5)
        ticket = (await client.post("/v1/tickets", json={}, headers=bearer(short))).json()["ticket"]
        async with (
            events(client, "/v1/subscribe?channel=chat.a", short) as stream,
            events(client, f"/v1/subscribe?channel=chat.a&ticket={ticket}", None) as by_ticket,
        ):
            await ending.ask(connect={"token": short})
            await renewing.ask(connect={"token": short})
            await renewing.ask(refresh={"token": token()})
            assert await ending.ended() == (3005, "connection expired")
            await eventually(lambda: said_goodbye(stream) and said_goodbye(by_ticket))
        assert await status(client, "GET", "/v1/whoami", short) == (401, "unauthenticated")
        assert (await renewing.ask(publish=PUBLISH))["publish"]["seq"] == 1
