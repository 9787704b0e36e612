"""A service that requires credentials, for all tests of a file: three senders, and a channel `room`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

import asyncpg
import pytest
from gapless import AsyncClient, NotFound

from app.embedded import EmbeddedPostgres
from tests.conftest import Database, External, service_of_its_own
from tests.integration.test_keys import EVERYTHING, make
from tests.patience import eventually, http_client

MODERATING = {"actions": ["publish", "subscribe", "moderate", "manage"], "channels": [">"]}
QUEUES = {"actions": ["manage", "consume"], "subscriptions": [">"]}


@dataclass(frozen=True, slots=True)
class Company:
    """Where the service is, its database, and the keys of the senders."""

    url: str
    database: Database
    keys: list[str]


async def senders(url: str) -> list[str]:
    """The keys of three senders. There was none before."""
    async with http_client(url) as anybody:
        root = (await make(anybody, "root", [*EVERYTHING, MODERATING]))["key"]
        grants = [MODERATING, QUEUES]
        return [(await make(anybody, name, grants, root))["key"] for name in ("ann", "bob", "eve")]


@pytest.fixture(scope="module")
def company(
    postgres: EmbeddedPostgres | External, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Company]:
    with service_of_its_own(postgres, redis_url, tmp_path_factory.mktemp("company")) as (url, database):
        yield Company(url, database, asyncio.run(senders(url)))


@pytest.fixture
async def people(company: Company) -> AsyncIterator[list[AsyncClient]]:
    """A client of each sender. The room does not exist before the test, nor after it."""
    async with AsyncExitStack() as stack:
        clients = [AsyncClient(company.url, token=key) for key in company.keys]
        yield [await stack.enter_async_context(client) for client in clients]
        with suppress(NotFound):
            await clients[0].channels.delete("room")


@pytest.fixture
async def company_owner(company: Company) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the owner of the company's database."""
    connection: asyncpg.Connection = await asyncpg.connect(company.database.owner_url)
    yield connection
    connection.terminate()


async def trim(owner: asyncpg.Connection, channel: str) -> None:
    """Let retention remove what a channel does not keep. A call does nothing while the service trims."""

    async def is_trimmed() -> bool:
        await owner.execute("select gapless.trim_channels(10)")
        query = "select last_seq - first_seq + 1 <= max_messages from gapless.channels where name = $1"
        return bool(await owner.fetchval(query, channel))

    await eventually(is_trimmed)
