"""A first start that lacks something says what, at once, and goes on by itself when it is there."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from app.embedded import EmbeddedPostgres, EmbeddedRedis
from load.children import free_port
from tests.contract.freezing_proxy import FreezingProxy
from tests.patience import PATIENCE_S, eventually, http_client, in_time
from tests.support import ROOT

T = TypeVar("T")

READY = "Gapless is ready on "


class Starting:
    """`gapless serve` on a home of its own, and what it says from the first moment on."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.output = ""

    async def begin(self, *arguments: str, **settings: str) -> Starting:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GAPLESS_")}
        paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "client")])}
        given = {f"GAPLESS_{name.upper()}": value for name, value in settings.items()}
        self.process = await asyncio.create_subprocess_exec(
            *[sys.executable, "-P", "-m", "app.cli", "serve", "--port", "0", *arguments],
            env={**kept, **paths, "GAPLESS_HOME": str(self._home), **given},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return self

    async def says(self, text: str) -> str:
        """The line that begins with, or has, this; fails with all the output when it ends without."""
        assert self.process.stdout is not None
        while line := (await self._in_time(self.process.stdout.readline())).decode():
            self.output += line
            if text in line:
                return line
        raise AssertionError(f"no {text!r} in:\n{self.output}")

    async def is_ready(self) -> str:
        return (await self.says(READY)).split()[-1]

    async def stop(self) -> int:
        with suppress(ProcessLookupError):
            self.process.terminate()
        return await self.ends()

    async def ends(self) -> int:
        return await self._in_time(self.process.wait())

    async def _in_time(self, awaited: Awaitable[T]) -> T:
        """What is awaited of the process. One that hangs is killed, and the test fails with its output."""
        try:
            return await in_time(awaited, 3 * PATIENCE_S)
        except TimeoutError:
            self.process.kill()
            assert self.process.stdout is not None
            rest = await in_time(self.process.stdout.read())
            raise AssertionError(f"killed, as it hung:\n{self.output}{rest.decode()}") from None


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def begin(*arguments: str, home: Path | None = None, **settings: str) -> Starting:
            started = await Starting(home or tmp_path / "unused").begin(*arguments, **settings)
            stack.push_async_callback(started.stop)
            return started

        yield begin


@pytest.fixture
async def proxy() -> AsyncIterator[Callable[[str], FreezingProxy]]:
    made: list[FreezingProxy] = []

    def make(url: str) -> FreezingProxy:
        made.append(FreezingProxy(url))
        return made[-1]

    yield make
    for one in made:
        await one.stop()


def through(port: int, user: str = "gapless_owner") -> str:
    """The address of a database's user by way of a port on loopback."""
    return f"postgresql://{user}:secret@127.0.0.1:{port}/gapless"


async def test_a_database_that_is_away_is_named_and_waited_for(
    start: Any, proxy: Any, postgres: EmbeddedPostgres, redis: EmbeddedRedis
) -> None:
    port = free_port()
    urls = {"database_url": through(port, "gapless_service"), "migrate_url": through(port)}
    service = await start(**urls, redis_url=redis.url)
    line = await service.says("Connect call failed")
    assert line.startswith(f"waiting for the database at postgresql://gapless_owner:***@127.0.0.1:{port}/")
    await proxy(f"unix://{postgres.sockets}/.s.PGSQL.5432").start(port)
    await service.says("is there after")
    await service.is_ready()


async def test_a_frozen_database_is_named_and_waited_for(
    start: Any, postgres: EmbeddedPostgres, redis: EmbeddedRedis
) -> None:
    assert postgres.pid is not None
    os.kill(postgres.pid, signal.SIGSTOP)
    try:
        service = await start(
            database_url=postgres.service_url, migrate_url=postgres.owner_url, redis_url=redis.url
        )
        # "yet", and on a machine that stopped for seconds already "within 5 s".
        assert re.search("no answer (yet|within)", await service.says("waiting for the database at "))
    finally:
        os.kill(postgres.pid, signal.SIGCONT)
    await service.is_ready()


@pytest.mark.drill
async def test_a_redis_that_hangs_is_named_and_not_waited_for(
    start: Any, proxy: Any, postgres: EmbeddedPostgres, redis: EmbeddedRedis
) -> None:
    hanging = proxy(redis.url)
    hanging.freeze()
    await hanging.start()
    service = await start(
        database_url=postgres.service_url, migrate_url=postgres.owner_url, redis_url=hanging.url
    )
    assert "does not answer (no answer within" in await service.says("Redis at ")
    url = await service.is_ready()
    hanging.thaw()
    async with http_client(url) as client:

        async def hears() -> bool:
            return bool((await client.get("/readyz")).json()["redis"])

        await eventually(hears)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk of its own, with room for an installation. It lies outside the runner's folders: a run that
    is killed leaves it behind, and the next run could not clear them up."""
    folder = Path(tempfile.mkdtemp(prefix="gapless-disk-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=256m,mode=700", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        folder.rmdir()
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    folder.rmdir()


def fill(disk: Path, left: int) -> Path:
    """A file that takes all the room but so many bytes."""
    ballast, facts = disk / "ballast", os.statvfs(disk)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, facts.f_bavail * facts.f_frsize - left)
    return ballast


@pytest.mark.parametrize(
    "left",
    [
        pytest.param(0, id="nothing", marks=pytest.mark.drill),
        pytest.param(64 * 1024, id="a little", marks=pytest.mark.drill),
        pytest.param(30 * 1024**2, id="not enough"),
    ],
)
async def test_a_full_disk_is_named_and_waited_for(start: Any, small_disk: Path, left: int) -> None:
    ballast = fill(small_disk, left)
    service = await start(home=small_disk / "home")
    await service.says("is full; make room on it")
    assert service.process.returncode is None
    ballast.unlink()
    await service.is_ready()
    assert await service.stop() == 0


@pytest.mark.drill
async def test_a_full_disk_is_waited_for_with_servers_elsewhere_too(
    start: Any, small_disk: Path, postgres: EmbeddedPostgres, redis: EmbeddedRedis
) -> None:
    """Workers that count together write into files that are mapped, and would be killed without a word."""
    ballast = fill(small_disk, left=64 * 1024)
    servers = {
        "database_url": postgres.service_url,
        "migrate_url": postgres.owner_url,
        "redis_url": redis.url,
    }
    service = await start("--workers", "2", home=small_disk / "home", **servers)
    assert "waiting for the home " in await service.says("is full; make room on it")
    ballast.unlink()
    await service.is_ready()


async def test_a_stop_while_it_waits_ends_it_in_order(start: Any, redis: EmbeddedRedis) -> None:
    service = await start(database_url=through(1), redis_url=redis.url)
    await service.says("waiting for the database at ")
    assert await service.stop() == 0
    assert "is there" not in service.output


@pytest.mark.drill
async def test_a_stop_while_the_database_is_frozen_ends_it_in_order(
    start: Any, postgres: EmbeddedPostgres, redis: EmbeddedRedis
) -> None:
    assert postgres.pid is not None
    os.kill(postgres.pid, signal.SIGSTOP)
    try:
        service = await start(
            database_url=postgres.service_url, migrate_url=postgres.owner_url, redis_url=redis.url
        )
        await service.says("waiting for the database at ")
        assert await service.stop() == 0
    finally:
        os.kill(postgres.pid, signal.SIGCONT)
    assert "is there" not in service.output


async def test_what_nobody_can_wait_for_ends_it(start: Any, redis: EmbeddedRedis, home: Path) -> None:
    for settings, told in (
        (
            {"database_url": "mysql://joe:secret@db/x"},
            "must begin with postgresql:// or postgres://, not with",
        ),
        ({"database_url": "localhost:5432"}, "GAPLESS_DATABASE_URL: must begin with postgresql://"),
        ({"redis_url": "http://localhost"}, "GAPLESS_REDIS_URL: must begin with redis://"),
        (
            {"database_url": f"{through(1)}?sslmode=odd", "redis_url": redis.url},
            "not the address of a Postgres",
        ),
    ):
        service = await start(**settings)
        await service.says(told)
        assert await service.ends() in (1, 2)
        assert "secret" not in service.output


async def test_names_that_mean_nothing_are_told(start: Any, redis: EmbeddedRedis) -> None:
    service = await start(database_url=through(1), redis_url=redis.url, prot="9000", totally_else="1")
    line = await service.says("not a setting, and ignored")
    assert "GAPLESS_PROT (meant GAPLESS_PORT?)" in line
    assert "GAPLESS_TOTALLY_ELSE" in line
