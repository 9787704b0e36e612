"""The client protocol without WebSocket: streamed replies, and commands as requests."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from load.relay import connected
from tests.conftest import Serve
from tests.integration.frames import Frames
from tests.patience import http_client, in_time

pytestmark = pytest.mark.asyncio(loop_scope="function")

TRANSPORTS = ["http_stream", "sse"]


class Emulated(Frames):
    """A client whose commands are requests. `session` and `node` are those of its connect."""

    def __init__(self, http: httpx.AsyncClient, lines: AsyncIterator[str]) -> None:
        self.http = http
        self.lines = lines
        self.pushes = []
        self.replies = {}
        self._ids = itertools.count(2)
        self._read = deque()
        self.session = self.node = ""

    async def send(self, *commands: dict[str, Any]) -> None:
        text = "\n".join(msgspec.json.encode(command).decode() for command in commands)
        answer = await self.post({"session": self.session, "node": self.node, "data": text})
        assert answer.status_code == 204, answer.text

    async def post(self, body: object) -> httpx.Response:
        return await self.http.post("/v1/ws/emulation", json=body)

    async def next(self) -> dict[str, Any]:
        while True:
            line = await in_time(anext(self.lines))
            text = line.removeprefix("data: ").strip()
            said: dict[str, Any] = msgspec.json.decode(text) if text else {}
            if said:
                return said


@asynccontextmanager
async def emulated(url: str, transport: str, **connect: Any) -> AsyncIterator[Emulated]:
    command = msgspec.json.encode({"id": 1, "connect": connect}).decode()
    async with http_client(url) as http:
        if transport == "sse":
            opening = http.stream("GET", "/v1/ws/sse", params={"cf_connect": command})
        else:
            headers = {"Content-Type": "application/json"}
            opening = http.stream("POST", "/v1/ws/http_stream", content=command, headers=headers)
        async with opening as stream:
            assert stream.status_code == 200, await stream.aread()
            client = Emulated(http, stream.aiter_lines())
            said = (await client.reply(1))["connect"]
            client.session, client.node = said["session"], said["node"]
            yield client


def name() -> str:
    return f"em.{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_commands_are_answered_on_the_stream(server_url: str, transport: str) -> None:
    channel = name()
    async with emulated(server_url, transport) as client:
        subscribed = (await client.ask("subscribe", channel=channel))["subscribe"]
        assert subscribed["offset"] == 0
        published = (await client.ask("publish", channel=channel, data={"text": "two\nlines"}))["publish"]
        assert published["seq"] == 1
        push = await client.push()
        assert push["pub"]["data"] == {"text": "two\nlines"}
        assert push["pub"]["offset"] == 1
        assert (await client.ask("history", channel=channel, limit=10))["history"]["offset"] == 1
        assert "error" in await client.ask("rpc", data={})


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_was_missed_is_recovered(server_url: str, transport: str) -> None:
    channel = name()
    async with emulated(server_url, transport) as client:
        at = (await client.ask("subscribe", channel=channel))["subscribe"]
    async with emulated(server_url, transport) as client:
        await client.send(*({"id": 9 + n, "publish": {"channel": channel, "data": n}} for n in range(50)))
        await client.reply(58)
        position = {"recover": True, "offset": at["offset"], "epoch": at["epoch"]}
        found = (await client.ask("subscribe", channel=channel, **position))["subscribe"]
        assert found["recovered"]
        assert [(await client.push())["pub"]["data"] for _ in range(50)] == list(range(50))


async def test_subscriptions_may_begin_with_the_stream(server_url: str) -> None:
    channel = name()
    async with emulated(server_url, "sse", subs={channel: {}}) as client:
        await client.ask("publish", channel=channel, data=1)
        assert (await client.push())["pub"]["seq"] == 1


async def test_the_first_command_may_be_on_several_lines(server_url: str) -> None:
    async with http_client(server_url) as http:
        text = '{\n "id": 1,\n "connect": {}\n}'
        headers = {"Content-Type": "application/json"}
        async with http.stream("POST", "/v1/ws/http_stream", content=text, headers=headers) as stream:
            assert "connect" in msgspec.json.decode(await anext(stream.aiter_lines()))


async def test_a_further_request_on_the_connection_leaves_the_stream_whole(server_url: str) -> None:
    channel = name()
    host, port = server_url.removeprefix("http://").split(":")
    body = msgspec.json.encode({"id": 1, "connect": {"subs": {channel: {}}}})
    head = f"POST /v1/ws/http_stream HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    async with connected(host, int(port)) as (reader, writer):
        writer.write(head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        await reader.readuntil(b'"connect"')
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: %b\r\n\r\n" % host.encode())
        await asyncio.sleep(0.2)
        async with http_client(server_url) as http:
            await http.post(f"/v1/channels/{channel}/messages", json={"data": 1})
        await reader.readuntil(b"\n\r\n")
        said: dict[str, Any] = {}
        while "pub" not in said:
            chunk = await reader.readexactly(int(await reader.readuntil(b"\r\n"), 16) + 2)
            said = msgspec.json.decode(chunk)["push"]
        assert said["pub"]["data"] == 1


async def test_a_session_or_process_that_is_gone(server_url: str) -> None:
    async with emulated(server_url, "http_stream") as client:
        gone = await client.post({"session": "none", "node": client.node, "data": "{}"})
        assert gone.status_code == 204, "its stream ends, or has ended"
        unknown = await client.post({"session": client.session, "node": "0" * 16, "data": "{}"})
        assert unknown.status_code == 404
        assert unknown.json()["code"] == "not_found"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{}", 422),
        (b"{", 400),
        (b'{"session":"s","node":"0123456789abcdef","data":{}}', 422),
        (b'{"session":"s","node":"0123456789abcdef","data":"\\ud800"}', 422),
        (b'{"session":"s","node":"0123456789abcdeg","data":"{}"}', 422),
        (b'{"session":"s","node":"0123456789abcde","data":"{}"}', 422),
        (b'{"session":"s","node":"0123456789abcde\\n","data":"{}"}', 422),
        (b'{"session":"s","node":"0123456789ABCDEF","data":"{}"}', 422),
        (b'{"session":"' + b"s" * 3_000_000 + b'"}', 413),
    ],
)
async def test_bodies_that_are_no_commands(server_url: str, body: bytes, status: int) -> None:
    async with http_client(server_url) as http:
        headers = {"Content-Type": "application/json"}
        answer = await http.post("/v1/ws/emulation", content=body, headers=headers)
        assert answer.status_code == status, answer.text
        plain = await http.post("/v1/ws/emulation", content=body, headers={"Content-Type": "text/plain"})
        assert plain.status_code == 415


@pytest.mark.parametrize("members", ['"token":"secret"', '"subs":{"a":{"token":"secret"}}'])
async def test_no_token_in_a_url(server_url: str, members: str) -> None:
    async with http_client(server_url) as http:
        command = f'{{"id":1,"connect":{{{members}}}}}'
        answer = await http.get("/v1/ws/sse", params={"cf_connect": command})
        assert answer.status_code == 422
        assert "secret" not in answer.text


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_what_is_malformed_is_refused_and_the_third_ends_the_stream(
    server_url: str, transport: str
) -> None:
    async with emulated(server_url, transport) as client:
        for _ in range(3):
            await client.post({"session": client.session, "node": client.node, "data": "nonsense"})
        for _ in range(3):
            assert (await client.next())["error"]["code"] == 107
        said = await client.next()
        assert said["push"]["disconnect"]["code"] == 3501
        with pytest.raises(StopAsyncIteration):
            await client.next()


async def test_commands_may_arrive_at_another_process(serve: Serve) -> None:
    service = serve("--workers", "2")
    channel = name()
    async with emulated(service.url, "http_stream") as client:
        await client.ask("subscribe", channel=channel)
        for number in range(40):
            # Each from a new connection, which either process may take.
            async with http_client(service.url) as client.http:
                published = await client.ask("publish", channel=channel, data=number)
                assert published["publish"]["seq"] == number + 1
        assert [(await client.push())["pub"]["data"] for _ in range(40)] == list(range(40))


async def test_a_server_that_stops_says_so(serve: Serve) -> None:
    service = serve()
    async with emulated(service.url, "sse") as client:
        stopping = asyncio.create_task(asyncio.to_thread(service.stop))
        assert (await client.next())["push"]["disconnect"] == {"code": 3001, "reason": "shutdown"}
    assert await stopping == 0
