"""`gapless doctor` on servers that were set up as the operations page says, with no more rights than that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from redis.asyncio import Redis

from app.embedded import EmbeddedPostgres, EmbeddedRedis
from db.migrate import migrate
from tests.cli.conftest import Run
from tests.cli.test_doctor import doctor
from tests.docs.pages import fences

OPERATIONS = "docs/operations.md"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(tmp_path / "cluster")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis(tmp_path / "redis-home")
    server.start()
    yield server
    server.stop()


async def as_documented(server: EmbeddedPostgres) -> None:
    """An administrator's part, on a cluster that knows nothing of us yet."""
    admin = await asyncpg.connect(server.admin_url.replace("/gapless?", "/postgres?"))
    await admin.execute("drop database gapless")
    for role in ("owner", "service", "publisher", "reader"):
        await admin.execute(f"drop role gapless_{role}")
    await admin.execute("create role shop login")
    [setup] = [found.text for found in fences(OPERATIONS) if "create role gapless_owner" in found.text]
    for statement in setup.strip().removesuffix(";").split(";\n"):
        await admin.execute(statement)
    await migrate(server.owner_url)
    await admin.close()
    inside = await asyncpg.connect(server.admin_url)
    for page, part in (("docs/spark.md", "create role reader"), (OPERATIONS, "grant_publisher('shop', ")):
        [granting] = [found.text for found in fences(page) if part in found.text]
        if page == OPERATIONS:
            await inside.execute("select gapless.ensure_namespace('acme'); create role spark login")
        await inside.execute(granting)
    await inside.close()


async def test_what_the_page_says_is_enough_for_everything_to_be_fine(
    run: Run, cluster: EmbeddedPostgres, redis: EmbeddedRedis
) -> None:
    await as_documented(cluster)
    other = await asyncpg.connect(cluster.owner_url)
    root = Redis.from_url(redis.url)
    [acl] = [found.text for found in fences(OPERATIONS) if found.text.startswith("ACL SETUSER")]
    await root.execute_command(*acl.split())  # type: ignore[no-untyped-call]
    await root.aclose()
    environment = {
        "GAPLESS_DATABASE_URL": cluster.owner_url.replace("gapless_owner@", "gapless_app@"),
        "GAPLESS_REDIS_URL": redis.url.replace("unix://", "unix://gapless:PASSWORD@"),
    }
    checks = doctor(run, 0, "--port", "0", **environment)
    assert {name: check["detail"] for name, check in checks.items() if check["word"] != "ok"} == {}
    assert "gapless_service (login gapless_app)" in checks["role"]["detail"]
    assert int(checks["connections"]["detail"].split()[0]) >= 2, "its own, and that of the owner"
    assert "1 more" in checks["transactions"]["detail"]
    await other.close()
