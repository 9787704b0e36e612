"""A real Postgres and Redis for the run, a database of its own for each test that asks, a real service."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import asyncpg
import pytest
from hypothesis import HealthCheck, settings

from app.embedded import EmbeddedPostgres, EmbeddedRedis
from app.embedded import redis as embedded_redis
from app.embedded.binaries import PostgresBinaries
from app.embedded.identity import Identity
from app.embedded.postgres import ANSWERING
from db.migrate import migrate
from tests.memory import folder_in_memory
from tests.patience import PATIENCE_S
from tests.support import RunningService

pytest_plugins = ["tests.leaks", "tests.records"]

embedded_redis.START_TIMEOUT_S = PATIENCE_S  # Within 10 s a busy machine may not start it.

# The same examples in every run, and no example is wrong because the machine is busy.
settings.register_profile(
    "deterministic", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("deterministic")

# Two test processes may share one external server, so names tell them apart.
PROCESS = os.environ.get("PYTEST_XDIST_WORKER", "main")
TEMPLATE = f"gapless_template_{PROCESS}"
_numbers = itertools.count(1)

# A run in the background of a shell begins with Ctrl-C ignored, and everything it starts inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True, slots=True)
class Database:
    """One migrated, empty database. `owner_url` may do everything in it, `service_url` what the service
    may."""

    name: str
    owner_url: str
    service_url: str
    admin_url: str


class TunedPostgres(EmbeddedPostgres):
    """Starts with settings over the embedded one's own, which `over` gives."""

    def over(self) -> dict[str, str]:
        """The settings."""
        raise NotImplementedError

    def launch(
        self,
        data: Path,
        binaries: PostgresBinaries,
        identity: Identity,
        settings: Sequence[str] = (),
        until: Collection[str] = ANSWERING,
    ) -> None:
        """As the embedded one."""
        words = [word for name, value in self.over().items() for word in ("-c", f"{name}={value}")]
        super().launch(data, binaries, identity, (*settings, *words), until)


class UnsyncedPostgres(TunedPostgres):
    """Does not wait for the disk: no test that uses it cuts the power. `tests/embedded` and the drills have
    the real one."""

    def over(self) -> dict[str, str]:
        """See the class."""
        return {"fsync": "off", "full_page_writes": "off", "max_wal_size": "128MB"}


class External:
    """A Postgres that somebody else started, by its superuser's URL: what `.ci/external` names."""

    def __init__(self, url: str) -> None:
        host = urlsplit(url).netloc.rpartition("@")[2]
        self.admin_url = url
        self.owner_url = f"postgresql://gapless_owner@{host}/postgres?"
        self.service_url = f"postgresql://gapless_app@{host}/postgres?"

    def start(self) -> None:
        """Make the roles that an administrator would have made."""
        asyncio.run(self._make_roles())

    async def _make_roles(self) -> None:
        admin = await asyncpg.connect(self.admin_url)
        for role in (
            "gapless_service nologin",
            "gapless_publisher nologin",
            "gapless_reader nologin",
            "gapless_owner login",
            "gapless_app login in role gapless_service",
        ):
            # The other test process makes them too.
            with contextlib.suppress(asyncpg.DuplicateObjectError, asyncpg.UniqueViolationError):
                await admin.execute(f"create role {role}")
        await admin.close()

    def stop(self) -> None:
        """It is not ours to stop."""


Server = TypeVar("Server", bound=EmbeddedPostgres | External)


@contextlib.contextmanager
def with_template(server: Server) -> Iterator[Server]:
    """Run the server, with a migrated template database."""
    server.start()
    try:
        asyncio.run(_make_template(server))
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres | External]:
    """The run's Postgres, with a migrated template database."""
    if url := os.environ.get("GAPLESS_TEST_DATABASE_URL"):
        with with_template(External(url)) as external:
            yield external
        return
    with (
        folder_in_memory(tmp_path_factory.mktemp("postgres")) as folder,
        with_template(UnsyncedPostgres(folder)) as embedded,
    ):
        yield embedded


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The run's Redis."""
    if url := os.environ.get("GAPLESS_TEST_REDIS_URL"):
        yield url
        return
    server = EmbeddedRedis(tmp_path_factory.mktemp("redis"))
    server.start()
    try:
        yield server.url
    finally:
        server.stop()


async def _make_template(server: EmbeddedPostgres | External) -> None:
    admin = await asyncpg.connect(server.admin_url)
    await admin.execute(f"drop database if exists {TEMPLATE}")
    await admin.execute(f"create database {TEMPLATE} owner gapless_owner")
    await admin.close()
    await migrate(_in(server.owner_url, TEMPLATE))


def _in(url: str, name: str) -> str:
    """The same server and role, another database."""
    before, _, rest = url.partition("?")
    return f"{before.rpartition('/')[0]}/{name}?{rest}"


async def make_database(server: EmbeddedPostgres | External) -> Database:
    """A copy of the template, whose log begins here."""
    name = f"gapless_{PROCESS}_{next(_numbers)}"
    admin = await asyncpg.connect(server.admin_url)
    # By its files, as Postgres 14 does: else each page goes through the log and the shared buffers.
    how = "strategy file_copy" if admin.get_server_version().major > 14 else ""
    await admin.execute(f"create database {name} template {TEMPLATE} owner gapless_owner {how}")
    await admin.close()
    owner = await asyncpg.connect(_in(server.owner_url, name))
    await owner.execute("select gapless.fence()")
    await owner.close()
    return Database(
        name, _in(server.owner_url, name), _in(server.service_url, name), _in(server.admin_url, name)
    )


async def drop_database(server: EmbeddedPostgres | External, database: Database) -> None:
    """Drop it whoever is connected."""
    admin = await asyncpg.connect(server.admin_url)
    await admin.execute(f"drop database if exists {database.name} with (force)")
    await admin.close()


@pytest.fixture
async def database(postgres: EmbeddedPostgres | External) -> AsyncIterator[Database]:
    """An empty, migrated database for one test."""
    made = await make_database(postgres)
    yield made
    await drop_database(postgres, made)


@pytest.fixture
async def owner(database: Database) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the owner, as a user's own program would have it."""
    connection: asyncpg.Connection = await asyncpg.connect(database.owner_url)
    yield connection
    connection.terminate()


Serve = Callable[..., RunningService]


@pytest.fixture
def serve(database: Database, redis_url: str, tmp_path: Path) -> Iterator[Serve]:
    """Starts services on the test's database; ended with the test."""
    started: list[RunningService] = []

    def start(*arguments: str, **environment: str) -> RunningService:
        service = RunningService(service_environment(database, redis_url, tmp_path) | environment, arguments)
        started.append(service)
        return service

    yield start
    for service in started:
        service.kill()


def service_environment(database: Database, redis_url: str, home: Path) -> dict[str, str]:
    """The variables under which `gapless serve` uses this database and Redis."""
    return {
        "GAPLESS_DATABASE_URL": database.service_url,
        "GAPLESS_MIGRATE_URL": database.owner_url,
        "GAPLESS_REDIS_URL": redis_url,
        "GAPLESS_HOME": str(home),
        "GAPLESS_MAINTENANCE_INTERVAL": "0.5",
    }


@contextlib.contextmanager
def service_of_its_own(
    postgres: EmbeddedPostgres | External, redis_url: str, home: Path, **settings: str
) -> Iterator[tuple[str, Database]]:
    """A running service on a new database: its address, and that database."""
    made = asyncio.run(make_database(postgres))
    service = RunningService(service_environment(made, redis_url, home) | settings)
    try:
        yield service.url, made
    finally:
        service.kill()
        asyncio.run(drop_database(postgres, made))


@pytest.fixture(scope="session")
def server_url(
    postgres: EmbeddedPostgres | External, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """A running service that many tests share: use channel names of your own. `GAPLESS_TESTS_UNDER` names
    another way to run it, of `tests/integration/wrapped_worker.py`."""
    if way := os.environ.get("GAPLESS_TESTS_UNDER"):
        from tests.integration.served import worker

        with worker(way, postgres, redis_url, tmp_path_factory.mktemp("service")) as (url, _):
            yield url
        return
    with service_of_its_own(postgres, redis_url, tmp_path_factory.mktemp("service")) as (url, _):
        yield url
