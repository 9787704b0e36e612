"""Whose folders these are is looked at, and no link in them is followed."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from app.embedded import EmbeddedError, EmbeddedPostgres, EmbeddedRedis, HomeLock
from app.embedded.folders import give, make_private, read_plain, replace
from app.embedded.home import prepare
from tests.embedded.support import query
from tests.patience import next_line

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give things away")
HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
file.write("999999999\\n")
file.flush()
print("held", flush=True)
sys.stdin.read()
"""


def nobody() -> tuple[int, int]:
    entry = pwd.getpwnam("nobody")
    return entry.pw_uid, entry.pw_gid


def test_a_link_among_the_data_leads_no_start_elsewhere(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """The data may be another user's than the one who starts the server."""
    postgres.stop()
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    for name in ("postgresql.new", "pg_hba.new", "postgresql.conf", "pg_hba.conf", "pg_hba.conf.new"):
        (postgres.data / name).unlink(missing_ok=True)
        (postgres.data / name).symlink_to(precious)
    postgres.start()
    assert query(postgres.service_url, "select 1") == 1
    assert precious.read_text() == "as it was"


def test_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("18\n")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    assert [read_plain(tmp_path / name) for name in ("file", "link", "pipe", "none")] == [
        "18\n", None, None, None
    ]  # fmt: skip


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("as it was")
    for name in ("target", "target.new"):
        (tmp_path / name).symlink_to(precious)
    replace(tmp_path / "target", "new")
    assert (tmp_path / "target").read_text() == "new"
    assert precious.read_text() == "as it was"


def test_a_link_is_no_private_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (tmp_path / "run").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EmbeddedError, match="is a link or belongs to someone else"):
        make_private(tmp_path / "run", {os.geteuid()})
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o755


@root_only
def test_what_is_given_away_is_not_what_a_link_leads_to(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    given = tmp_path / "given"
    (given / "deep").mkdir(parents=True)
    (given / "deep" / "file").touch()
    (given / "deep" / "link").symlink_to(outside)
    give(given, *nobody())
    assert (given / "deep" / "file").stat().st_uid == nobody()[0]
    assert given.stat().st_uid == nobody()[0]
    assert outside.stat().st_uid == (outside / "inner").stat().st_uid == 0


@root_only
@pytest.mark.parametrize("name", ["run", "redis", "log"])
def test_redis_is_not_started_in_a_folder_that_someone_else_made(home: Path, name: str) -> None:
    server = EmbeddedRedis(home)
    (home / name).mkdir()
    os.chown(home / name, *nobody())
    with pytest.raises(EmbeddedError, match="belongs to someone else"):
        server.start()
    assert not server.alive()


@root_only
def test_a_home_of_another_user_is_refused(home: Path) -> None:
    home.mkdir()
    os.chown(home, *nobody())
    with pytest.raises(EmbeddedError, match="run Gapless as its owner"):
        prepare(home)


def test_a_lock_whose_holder_is_being_ended_is_waited_for(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `kill -9` the kernel takes its time to let go of what the process held."""
    prepare(home)
    lock = HomeLock(home)
    hold = [sys.executable, "-c", HOLD, str(lock.path)]
    with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert next_line(holder, holder.stdout) == "held\n"
        asked: list[str] = []

        def is_running(pid: str) -> bool:
            asked.append(pid)
            assert holder.stdin is not None
            holder.stdin.close()
            return False

        monkeypatch.setattr("app.embedded.processes.is_running", is_running)
        lock.take()
        assert asked[0] == "999999999"
    lock.release()
