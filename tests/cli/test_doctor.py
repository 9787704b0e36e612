"""`gapless doctor` on what is sound and on what is not."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.cli.doctor import server
from app.cli.doctor.check import Word
from app.cli.doctor.database import judge
from app.cli.doctor.redis import judge as judge_redis
from app.embedded import EmbeddedPostgres
from app.process.settings import Settings
from cache.doctor import RedisFacts
from cache.doctor import examine as examine_redis
from db.doctor import DatabaseFacts, examine
from tests.cli.conftest import Run
from tests.conftest import Database, Serve, service_environment, with_template


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    """As users have it: the doctor says what the tests' own does not sync."""
    with with_template(EmbeddedPostgres(tmp_path_factory.mktemp("postgres"))) as server:
        yield server


def words(checks: list[Any]) -> dict[str, str]:
    """Each check's word, by name."""
    return {check["name"]: check["word"] for check in checks}


def doctor(run: Run, code: int, *options: str, **environment: str) -> dict[str, dict[str, Any]]:
    """The checks by name."""
    answer = json.loads(run("doctor", "--json", *options, code=code, **environment).stdout)
    assert answer["ok"] is (code == 0)
    return {check["name"]: check for check in answer["checks"]}


def test_a_sound_installation(
    run: Run, serve: Serve, database: Database, redis_url: str, tmp_path: Path
) -> None:
    service = serve()
    environment = service_environment(database, redis_url, tmp_path)
    port = service.url.rpartition(":")[2]
    checks = doctor(run, 0, "--port", port, **environment)
    assert {check["word"] for check in checks.values()} == {"ok"}
    assert "cannot write tables" in checks["role"]["detail"]
    assert checks["port"]["detail"].endswith("Gapless is ready")
    assert "publish and subscribe work" in checks["redis"]["detail"]


def test_before_the_first_serve(run: Run, tmp_path: Path) -> None:
    checks = doctor(run, 0, "--port", "0")
    assert {check["word"] for check in checks.values()} == {"ok"}
    assert "embedded, not running" in checks["database"]["detail"]
    assert not (tmp_path / "home").exists(), "looking changes nothing"


def test_a_broken_setup(run: Run, tmp_path: Path, server_url: str) -> None:
    broken = {
        "GAPLESS_DATABASE_URL": "postgresql://joe:hidden@127.0.0.1:1/x",
        "GAPLESS_REDIS_URL": "redis://127.0.0.1:1",
        "GAPLESS_HOST": "0.0.0.0",
        "GAPLESS_PROT": "1",
    }
    checks = doctor(run, 1, **broken)
    assert {name for name, check in checks.items() if check["word"] == "fail"} >= {
        "database",
        "redis",
        "access",
    }
    assert "meant GAPLESS_PORT?" in checks["settings"]["detail"]
    text = run("doctor", code=1, **broken).stdout
    assert "hidden" not in text
    assert "→ start it, or correct GAPLESS_DATABASE_URL" in text


def test_settings_tell_their_source(run: Run, tmp_path: Path) -> None:
    (tmp_path / "gapless.toml").write_text("workers = 3\nprot = 1\n")
    answer = json.loads(run("doctor", "--json", "--port", "0", GAPLESS_LOG_LEVEL="error").stdout)
    found = {setting["name"]: (setting["value"], setting["source"]) for setting in answer["settings"]}
    assert found["workers"] == ("3", "gapless.toml")
    assert found["log_level"] == ("error", "GAPLESS_LOG_LEVEL")
    assert found["port"] == ("0", "--port")
    assert found["host"] == ("127.0.0.1", "default")
    assert words(answer["checks"])["settings"] == "warn"
    assert "which is not there" in doctor(run, 0, "--port", "0", GAPLESS_CONFIG="x")["settings"]["detail"]


def test_a_port_that_something_else_holds(run: Run, redis_url: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        assert doctor(run, 1, "--port", str(other.getsockname()[1]))["port"]["word"] == "fail"


async def test_a_service_role_that_can_write_is_found(database: Database, owner: asyncpg.Connection) -> None:
    sound = judge(await examine(database.service_url), "here")
    assert {check.word for check in sound} == {Word.OK}
    await owner.execute("grant insert on gapless.messages to gapless_service")
    await owner.execute("revoke select on gapless.channels from gapless_service")
    facts = await examine(database.service_url)
    assert facts.writable_tables == ("messages",)
    assert facts.unreadable_tables == ("channels",)
    assert {check.name: check.word for check in judge(facts, "here")}["role"] is Word.FAIL


async def test_a_database_without_the_schema(database: Database) -> None:
    empty = database.admin_url.replace(f"/{database.name}?", "/postgres?")
    facts = await examine(empty)
    assert facts.schema_version is None
    assert {check.name: check.word for check in judge(facts, "here")}["schema"] is Word.FAIL


async def test_a_login_that_cannot_be_the_service(database: Database) -> None:
    admin: asyncpg.Connection = await asyncpg.connect(database.admin_url)
    await admin.execute("drop role if exists gapless_stranger")
    await admin.execute("create role gapless_stranger login")
    await admin.execute(f"grant connect on database {database.name} to gapless_stranger")
    facts = await examine(database.service_url.replace("gapless_service@", "gapless_stranger@"))
    assert facts.role_error is not None
    [role] = [check for check in judge(facts, "here") if check.name == "role"]
    assert role.word is Word.FAIL
    assert "grant gapless_service to gapless_stranger" in (role.advice or "")
    await admin.execute(f"revoke connect on database {database.name} from gapless_stranger")
    await admin.execute("drop role gapless_stranger")
    await admin.close()


SOUND = DatabaseFacts(
    version="18.6",
    major=18,
    login="joe",
    role="gapless_service",
    role_error=None,
    superuser=False,
    standby=False,
    encoding="UTF8",
    fsync=True,
    full_page_writes=True,
    synchronous_commit="on",
    max_prepared_transactions=0,
    prepared_transactions=0,
    max_connections=200,
    connections=10,
    hidden=0,
    max_locks=64,
    segments=3,
    oldest_transaction_s=0.0,
    clock_ahead_s=0.01,
    round_trip_s=0.001,
    pooled=False,
    schema_version=1,
    schema_wanted=1,
    writable_tables=(),
    unreadable_tables=(),
    uncallable_functions=(),
    credentials_required=False,
    ids_left=7 * 10**15,
)


@pytest.mark.parametrize(
    ("changes", "name", "word"),
    [
        ({"major": 13}, "database", Word.FAIL),
        ({"standby": True}, "database", Word.FAIL),
        ({"encoding": "SQL_ASCII"}, "database", Word.FAIL),
        ({"round_trip_s": 0.2}, "database", Word.WARN),
        ({"schema_version": None}, "schema", Word.FAIL),
        ({"schema_version": 2}, "schema", Word.FAIL),
        ({"schema_wanted": 2}, "schema", Word.FAIL),
        ({"superuser": True}, "role", Word.FAIL),
        ({"uncallable_functions": ("append",)}, "role", Word.FAIL),
        ({"fsync": False}, "durability", Word.FAIL),
        ({"synchronous_commit": "off"}, "durability", Word.FAIL),
        ({"synchronous_commit": "local"}, "durability", Word.WARN),
        ({"max_prepared_transactions": 10}, "prepared transactions", Word.WARN),
        ({"prepared_transactions": 1}, "prepared transactions", Word.WARN),
        ({"oldest_transaction_s": 1000.0}, "transactions", Word.WARN),
        ({"pooled": True}, "pooling", Word.FAIL),
        ({"clock_ahead_s": -9.0}, "clock", Word.WARN),
        ({"connections": 195}, "connections", Word.WARN),
        ({"segments": 400}, "locks", Word.WARN),
        ({"ids_left": 10**14}, "ids", Word.WARN),
    ],
)
def test_each_fact_is_judged(changes: dict[str, Any], name: str, word: Word) -> None:
    checks = {check.name: check for check in judge(replace(SOUND, **changes), "here")}
    assert checks[name].word is word
    assert checks[name].advice
    assert {check.word for other, check in checks.items() if other != name} == {Word.OK}


def test_redis_is_judged(redis_url: str) -> None:
    facts = asyncio.run(examine_redis(redis_url))
    assert facts.heard
    assert judge_redis(facts, "here").word is Word.OK
    assert judge_redis(replace(facts, heard=False), "here").word is Word.FAIL
    old = RedisFacts("Redis 6.2.0", 6, 0.001, True)
    assert judge_redis(old, "here").word is Word.FAIL


@pytest.mark.parametrize(
    ("required", "anonymous", "word", "says"),
    [
        (True, False, Word.OK, "who has a credential"),
        (False, True, Word.WARN, "without credentials"),
        (False, False, Word.FAIL, "can be reached from other machines"),
    ],
)
def test_who_reaches_another_address_than_loopback(
    required: bool, anonymous: bool, word: Word, says: str
) -> None:
    settings = Settings(host="0.0.0.0", port=0, allow_anonymous=anonymous)
    access, _ = server.checks(settings, required)
    assert (access.word, access.name) == (word, "access")
    assert says in access.detail
