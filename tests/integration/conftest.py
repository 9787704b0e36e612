"""Two hosts of one installation, for tests in which what happens at one concerns the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import asyncpg
import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import External, drop_database, make_database, service_environment
from tests.integration.queueing import Host
from tests.patience import PATIENCE_S, wait_until
from tests.support import RunningService


@dataclass(frozen=True, slots=True)
class Hosts:
    """Where two services on one database are, and the URLs of its owner and of an administrator."""

    urls: tuple[str, str]
    owner_url: str
    admin_url: str


@pytest.fixture(scope="session")
def both_hosts(
    postgres: EmbeddedPostgres | External, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Hosts]:
    """They serve the whole run: use names of your own."""
    made = asyncio.run(make_database(postgres))
    with ExitStack() as stack:
        stack.callback(lambda: asyncio.run(drop_database(postgres, made)))
        services = []
        for name in ("one", "two"):
            environment = service_environment(made, redis_url, tmp_path_factory.mktemp(name))
            services.append(RunningService(environment))
            stack.callback(services[-1].kill)
        # Each hears what the other tells.
        for service in services:
            ready = f"{service.url}/readyz"
            wait_until(lambda: httpx.get(ready, timeout=PATIENCE_S).json().get("redis"))  # noqa: B023
        yield Hosts((services[0].url, services[1].url), made.owner_url, made.admin_url)


@pytest.fixture
async def hosts(both_hosts: Hosts) -> AsyncIterator[tuple[Host, Host]]:
    """A client of each."""
    one, two = (Host(url) for url in both_hosts.urls)
    async with one, two:
        yield one, two


@pytest.fixture
async def watcher(both_hosts: Hosts) -> AsyncIterator[asyncpg.Connection]:
    """An administrator, who sees what others ask."""
    connection: asyncpg.Connection = await asyncpg.connect(both_hosts.admin_url)
    yield connection
    connection.terminate()


@pytest.fixture
async def sql(both_hosts: Hosts) -> AsyncIterator[asyncpg.Connection]:
    """A user's own connection to their database."""
    connection: asyncpg.Connection = await asyncpg.connect(both_hosts.owner_url)
    yield connection
    connection.terminate()
