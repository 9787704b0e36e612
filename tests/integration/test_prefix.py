"""The service under a prefix that a proxy takes off: every address that it names has the prefix."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from pydantic import ValidationError

from app.process.application import GaplessApp
from app.process.settings import Settings
from tests.conftest import Database

PREFIX = "/events"
HERE = "http://127.0.0.1"


@asynccontextmanager
async def running(database: Database, redis_url: str) -> AsyncIterator[GaplessApp]:
    application = GaplessApp(Settings(database_url=database.service_url, redis_url=redis_url))
    async with application.router.lifespan_context(application):
        assert application.service is not None
        await application.service.opened()
        yield application


def asking(application: GaplessApp, root: str = "") -> httpx.AsyncClient:
    """A client of an application whose server says that it runs under `root`."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(application, root_path=root), base_url=HERE + root)


@pytest.fixture
async def under(database: Database, redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service whose server says that it runs under the prefix."""
    async with running(database, redis_url) as application, asking(application, PREFIX) as client:
        yield client


async def test_the_documents_name_it(under: httpx.AsyncClient) -> None:
    assert (await under.get("/openapi.json")).json()["servers"] == [{"url": PREFIX}]
    channels = (await under.get("/asyncapi.json")).json()["channels"]
    addresses = {channel["address"] for channel in channels.values()}
    assert addresses == {
        f"{PREFIX}/v1/{rest}" for rest in ("subscribe", "subscriptions/{name}/consume", "ws")
    }


async def test_the_pages_name_it(under: httpx.AsyncClient) -> None:
    for page in ("/", "/docs", "/docs/browser"):
        text = (await under.get(page)).text
        addresses = re.findall(r"""(?:href|src)=["']([^"']*)|[("'`](\.*/[\w./-]+)["'`?$]""", text)
        named = [address for pair in addresses for address in pair if address]
        assert named, page
        assert [name for name in named if name.startswith("/") and not name.startswith(PREFIX)] == [], page
    front = (await under.get("/")).text
    assert f">{PREFIX}/docs<" in front


async def test_a_repeated_request_is_the_same_with_it_and_without(database: Database, redis_url: str) -> None:
    async with running(database, redis_url) as application:
        answers = []
        for root in ("", PREFIX):
            async with asking(application, root) as client:
                answers.append(
                    await client.post(
                        "/v1/channels/room/messages", json={"data": 1}, headers={"idempotency-key": "once"}
                    )
                )
    assert [answer.status_code for answer in answers] == [201, 201]
    assert [answer.json()["id"] for answer in answers] == [answers[0].json()["id"]] * 2
    assert answers[1].headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("root", ["events", "/events/", "/", "/a b", "//events", "/events?x"])
def test_what_is_no_prefix(root: str) -> None:
    with pytest.raises(ValidationError, match="root_path"):
        Settings(root_path=root)


async def test_hot_routes_answer_under_it(under: httpx.AsyncClient) -> None:
    published = await under.post("/v1/channels/room/messages", json={"data": 1})
    assert (published.status_code, published.json()["seq"]) == (201, 1)
    answers = await asyncio.gather(
        *(under.get(path) for path in ("/v1/channels/room/messages", "/v1/channels/room"))
    )
    assert [answer.status_code for answer in answers] == [200, 200]
