"""A first start, its roles and its files."""

import asyncio
from pathlib import Path
from threading import Thread

import asyncpg
import pytest

from app.embedded import EmbeddedError, EmbeddedPostgres
from app.embedded.binaries import find_postgres
from db.migrate import MigrationError, migrate
from tests.embedded.support import query


def test_durability_is_on(postgres: EmbeddedPostgres) -> None:
    for setting in ("fsync", "full_page_writes", "synchronous_commit"):
        assert query(postgres.service_url, f"show {setting}") == "on"
    assert query(postgres.service_url, "show data_checksums") == "on"
    assert query(postgres.service_url, "show listen_addresses") == ""


def test_the_owner_migrates_and_the_service_only_serves(postgres: EmbeddedPostgres) -> None:
    query(postgres.owner_url, "create schema work create table note (id int)")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        query(postgres.service_url, "create schema mine")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        query(postgres.service_url, "select * from work.note")
    assert query(postgres.owner_url, "select current_user") == "gapless_owner"
    assert query(postgres.service_url, "select current_user") == "gapless_service"


def test_the_superuser_makes_databases_from_a_template(postgres: EmbeddedPostgres) -> None:
    query(postgres.owner_url, "create table note (id int)")
    query(postgres.admin_url, "create database copy template gapless owner gapless_owner")
    copy = postgres.owner_url.replace("/gapless?", "/copy?")
    assert query(copy, "select count(*) from note") == 0


def test_a_server_of_an_earlier_version_gets_the_roles_that_came_since(postgres: EmbeddedPostgres) -> None:
    query(postgres.admin_url, "drop role gapless_reader")
    with pytest.raises(MigrationError, match="role gapless_reader is missing"):
        asyncio.run(migrate(postgres.owner_url))
    asyncio.run(migrate(postgres.owner_url, admin_url=postgres.admin_url))
    readable = "select has_table_privilege('gapless_reader', 'gapless.messages', 'select')"
    assert query(postgres.owner_url, readable) is True


def test_only_the_user_can_reach_it(postgres: EmbeddedPostgres) -> None:
    assert postgres.sockets.stat().st_mode & 0o777 == 0o700
    assert postgres.home.stat().st_mode & 0o777 == 0o700
    assert (postgres.sockets / ".s.PGSQL.5432").is_socket()


def test_data_outlives_a_stop(postgres: EmbeddedPostgres) -> None:
    query(postgres.owner_url, "create table note as select 7 as id")
    postgres.stop()
    assert not postgres.alive()
    postgres.start()
    assert query(postgres.owner_url, "select id from note") == 7


def test_a_long_home_gets_a_short_socket_path(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / ("deep-" * 20) / "it's a home, with a comma")
    try:
        server.start()
        assert len(str(server.sockets / ".s.PGSQL.5432")) < 104
        assert query(server.service_url, "select 1") == 1
    finally:
        server.stop()
        server.sockets.rmdir()


def test_settings_of_the_operator_win_except_over_promises(postgres: EmbeddedPostgres) -> None:
    postgres.stop()
    (postgres.home / "postgres.local.conf").write_text("work_mem = '11MB'\nfsync = off\n")
    postgres.start()
    assert query(postgres.admin_url, "show work_mem") == "11MB"
    assert query(postgres.admin_url, "show fsync") == "on"


def test_data_of_an_unknown_version_is_refused(postgres: EmbeddedPostgres) -> None:
    postgres.stop()
    (postgres.data / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedError, match="written by Postgres 9, which is not on this machine"):
        postgres.start()


def test_data_is_served_by_the_version_that_wrote_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        old = find_postgres(15)
    except EmbeddedError:
        pytest.skip("needs a Postgres 15 on the machine")
    server = EmbeddedPostgres(home)
    monkeypatch.setattr("app.embedded.postgres.find_postgres", lambda major=None: old)
    server.start()
    server.stop()
    monkeypatch.undo()
    server.start()
    try:
        assert str(query(server.service_url, "show server_version")).startswith("15")
    finally:
        server.stop()


def test_a_folder_that_is_no_data_folder_is_left_alone(home: Path) -> None:
    server = EmbeddedPostgres(home)
    server.data.mkdir()
    (server.data / "precious").touch()
    with pytest.raises(EmbeddedError, match="holds no Postgres data"):
        server.start()
    assert (server.data / "precious").exists()


def test_it_is_not_started_from_a_thread_that_may_end(home: Path) -> None:
    errors: list[EmbeddedError] = []

    def start() -> None:
        try:
            EmbeddedPostgres(home).start()
        except EmbeddedError as error:
            errors.append(error)

    thread = Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in str(errors[0])


def test_a_broken_configuration_is_told_with_the_servers_own_words(postgres: EmbeddedPostgres) -> None:
    postgres.stop()
    (postgres.home / "postgres.local.conf").write_text("no_such_setting = 1\n")
    with pytest.raises(EmbeddedError, match="no_such_setting"):
        postgres.start()
