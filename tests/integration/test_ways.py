"""The application answers alike ahead of the framework, through it, and under a prefix."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from websockets.sync.client import connect

from app.api.route import Route
from app.api.table import ROUTES
from app.embedded import EmbeddedPostgres
from app.http.request import JSON
from app.process.application import GaplessApp
from app.process.settings import Settings
from tests.conftest import External, drop_database, make_database
from tests.integration.served import PAGE, worker
from tests.integration.test_emulation import TRANSPORTS, emulated
from tests.integration.wrapped_worker import PREFIX, WAYS
from tests.patience import PATIENCE_S, wait_until
from tests.sse import publish, subscribe

MESSAGES = 400
HERE = "http://127.0.0.1"
ENDLESS = ("/v1/subscribe", "/v1/subscriptions/{name}/consume", "/v1/ws/http_stream", "/v1/ws/sse")
PASSING = ("middleware", "function", "uvicorn-middleware")
"""The ways in which requests pass through somebody's middleware."""
FURTHER = ("middleware", "uvicorn", "uvicorn-prefix")
"""Ways of which the other ways have each part: a middleware, uvicorn, a prefix."""
EACH_WAY = [pytest.param(way, marks=pytest.mark.drill) if way in FURTHER else way for way in WAYS]
Where = Callable[[str], str]
PLACES = {
    "channel": "orders.eu",
    "name": "billing",
    "namespace": "acme",
    "key": "3k9x2m7q1b5d",
    "marker": "read",
    "message_id": 1,
    "dead_letter_id": 1,
    "scheduled_id": 1,
}
CASES: dict[str, dict[str, Any]] = {
    "as documented": {},
    "unknown parameter": {"params": {"nonsense": "1"}},
    "malformed": {"content": b"{", "headers": {"content-type": JSON}},
    "no such media type": {"content": b"{}", "headers": {"content-type": "text/csv"}},
    "credential": {"headers": {"authorization": "Bearer abc"}},
    "wrong method": {"method": "TRACE"},
    "preflight": {
        "method": "OPTIONS",
        "headers": {"origin": PAGE, "access-control-request-method": "GET"},
    },
}


@dataclass(frozen=True, slots=True)
class Said:
    """An answer without what differs between two answers to the same request."""

    asked: str
    status: int
    headers: list[tuple[str, str]]
    body: str = field(repr=False)
    passed: bool = field(repr=False, compare=False)
    """Whether it passed through the middleware."""
    ahead: bool = field(repr=False, compare=False)
    """Whether its row takes the connection, so that it passes nothing."""


def plain(text: str) -> str:
    """A text without its numbers, keys and times."""
    return re.sub(r"\d+(\.\d+)?", "0", re.sub(r"[\w-]{20,}|\b[0-9a-f]{16}\b", "key", text))


def request_of(route: Route, case: dict[str, Any]) -> dict[str, Any]:
    """The request of a row: what its document shows, with what the case changes."""
    asked: dict[str, Any] = {"method": route.method, "url": route.path.format(**PLACES), **case}
    if route.body is not None and route.body.example is not None and "content" not in asked:
        asked["json"] = route.body.example
    return asked


def ask(client: httpx.Client, route: Route, case: str) -> Said:
    """One request, and what was answered; of a stream, what came first."""
    with client.stream(**request_of(route, CASES[case])) as answer:
        first = next(answer.iter_text(), "")
        if "text/event-stream" not in answer.headers.get("content-type", "") and route.face != "websocket":
            first += "".join(answer.iter_text()) if not answer.is_stream_consumed else ""
        return said_of(route, case, answer, first)


def said_of(route: Route, case: str, answer: httpx.Response, text: str) -> Said:
    """An answer in the form that is compared."""
    dropped = ("x-request-id", "x-requests", "content-length", "date", "server")
    headers = sorted((name, plain(value)) for name, value in answer.headers.items() if name not in dropped)
    assert answer.headers["x-request-id"]
    said = "" if route.path == "/metrics" else plain(text)
    return Said(
        f"{answer.request.method} {route.path} ({case})",
        answer.status_code,
        headers,
        said,
        "x-requests" in answer.headers,
        route.takes_connection,
    )


def in_order() -> Iterator[Route]:
    """All rows: those that create first, and those that delete last. One is left out: with a key, all others
    would need one."""
    rows = [route for route in ROUTES if route.name != "create_key"]
    yield from sorted(rows, key=lambda route: ("PUT", route.method, "DELETE").index(route.method))


def endless(route: Route, case: str) -> bool:
    """Whether the answer is a stream that goes on. A client in the same process waits for its end."""
    return route.path in ENDLESS and case == "as documented"


async def ask_within(application: GaplessApp, asked: list[tuple[str, Route]]) -> list[Said]:
    """The answers through httpx's transport for ASGI, which starts and stops nothing."""
    transport = httpx.ASGITransport(application)
    async with (
        application.router.lifespan_context(application),
        httpx.AsyncClient(transport=transport, base_url=HERE) as client,
    ):
        assert application.service is not None
        await application.service.opened()
        answers = [(*one, await client.request(**request_of(one[1], CASES[one[0]]))) for one in asked]
    return [said_of(route, case, answer, answer.text) for case, route, answer in answers]


@pytest.fixture(scope="module")
def where(
    postgres: EmbeddedPostgres | External, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Where]:
    """Where the worker of a way listens. It is started when it is first asked for."""
    with ExitStack() as stack:

        @cache
        def started(way: str) -> str:
            folder = tmp_path_factory.mktemp(way)
            return stack.enter_context(worker(way, postgres, redis_url, folder))[0]

        yield started


def answers_of(url: str) -> list[Said]:
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        return [ask(client, route, case) for case in reversed(CASES) for route in in_order()]


@pytest.fixture(scope="module")
def alone(where: Where) -> list[Said]:
    """The answers of the worker as it is."""
    return answers_of(where("alone"))


@pytest.mark.parametrize("way", [way for way in EACH_WAY if way != "alone"])
def test_every_row_answers_alike(where: Where, alone: list[Said], way: str) -> None:
    said = answers_of(where(way))
    assert len(said) == (len(ROUTES) - 1) * len(CASES)
    for one, other in zip(alone, said, strict=True):
        assert (other, other.body) == (one, one.body)
    if way in PASSING:
        # The connection refuses a body of a type that a page of another site could send.
        assert {one.status for one in said if not (one.passed or one.ahead)} == {415}
    else:
        assert not any(one.passed for one in said)


@pytest.mark.drill
@pytest.mark.parametrize("client", ["TestClient", "ASGITransport"])
def test_every_row_answers_alike_in_the_same_process(
    postgres: EmbeddedPostgres | External, redis_url: str, tmp_path: Path, client: str
) -> None:
    made = asyncio.run(make_database(postgres))
    application = GaplessApp(
        Settings(database_url=made.service_url, redis_url=redis_url, allowed_origins=(PAGE,))
    )
    asked = [(case, route) for case in reversed(CASES) for route in in_order() if not endless(route, case)]
    if client == "TestClient":
        with TestClient(application, base_url=HERE) as within:
            wait_until(lambda: within.get("/readyz").status_code == 200)
            said = [ask(within, route, case) for case, route in asked]
    else:
        said = asyncio.run(ask_within(application, asked))
    asyncio.run(drop_database(postgres, made))
    with (
        worker("alone", postgres, redis_url, tmp_path) as (url, _),
        httpx.Client(base_url=url, timeout=PATIENCE_S) as outside,
    ):
        expected = [ask(outside, route, case) for case, route in asked]
    assert len(said) == (len(ROUTES) - 1) * len(CASES) - len(ENDLESS)
    for one, other in zip(expected, said, strict=True):
        assert (other, other.body) == (one, one.body)


@pytest.mark.parametrize("way", EACH_WAY)
def test_a_websocket_is_opened_in_every_way(where: Where, way: str) -> None:
    with connect(where(way).replace("http", "ws") + "/v1/ws") as client:
        client.send('{"id":1,"connect":{}}\n{"id":2,"publish":{"channel":"room","data":1}}')
        told = [json.loads(client.recv(PATIENCE_S)) for _ in range(2)]
    assert [one.get("id") for one in told] == [1, 2]


@pytest.mark.parametrize("way", EACH_WAY)
def test_the_document_names_the_prefix(where: Where, way: str) -> None:
    told = httpx.get(f"{where(way)}/openapi.json", timeout=PATIENCE_S).json().get("servers")
    assert told == ([{"url": PREFIX}] if way.endswith("prefix") else None)


@pytest.mark.parametrize("way", EACH_WAY)
def test_a_stream_is_in_order_in_every_way(where: Where, way: str) -> None:
    """It begins in the middle of what is published: what is read goes over into what is live."""
    url, room = where(way), f"order.{way}"
    asked = {"channel": room, "from": "earliest"}
    with (
        httpx.Client(base_url=url, timeout=PATIENCE_S) as client,
        ThreadPoolExecutor(4) as publishers,
    ):
        for _ in range(MESSAGES):
            publishers.submit(client.post, f"/v1/channels/{room}/messages", json={"data": 1})
        with client.stream("GET", "/v1/subscribe", params=asked) as stream:
            told = (json.loads(line[5:]) for line in stream.iter_lines() if line.startswith("data:"))
            events = list(islice((one for one in told if {"seq", "cursor"} & set(one)), MESSAGES + 1))
    assert [one["seq"] for one in events if "seq" in one] == list(range(1, MESSAGES + 1))
    (ready,) = (one for one in events if "cursor" in one)
    # What comes after `ready` is what its cursor does not cover.
    at = events.index(ready)
    assert [one["seq"] for one in events[:at] if one["id"] > ready["cursor"]] == []


@pytest.mark.parametrize("way", EACH_WAY)
async def test_readers_are_told_who_comes_and_goes_in_every_way(where: Where, way: str) -> None:
    url, room = where(way), f"company.{way}"
    async with subscribe(url, room, presence=True) as stays:
        await stays.until("ready")
        async with subscribe(url, room) as comes:
            await comes.until("ready")
            assert (await stays.until("presence"))[-1].json["action"] == "join"
        assert (await stays.until("presence"))[-1].json["action"] == "leave"
        await publish(url, room, "still here")
        assert [one["data"] for one in await stays.messages(1)] == ["still here"]


@pytest.mark.parametrize("way", EACH_WAY)
@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_commands_come_as_requests_in_every_way(where: Where, way: str, transport: str) -> None:
    room = f"emulated.{transport}.{way}"
    async with emulated(where(way), transport) as client:
        assert "subscribe" in await client.ask("subscribe", channel=room)
        for number in range(50):
            await client.send({"publish": {"channel": room, "data": number}, "id": 100 + number})
        pushes = [(await client.push())["pub"] for _ in range(50)]
    assert [push["offset"] for push in pushes] == list(range(1, 51))
    assert sorted(push["data"] for push in pushes) == list(range(50))
