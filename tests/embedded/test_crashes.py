"""What is killed comes back, whole, and never twice over one data folder."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest

from app.embedded import EmbeddedError, EmbeddedPostgres, EmbeddedRedis, HomeLock, processes
from app.embedded.identity import Kind, choose
from tests.embedded.support import Launch, kill, query
from tests.patience import next_line, wait_until

KEEPER = str(Path(__file__).with_name("keep_postgres.py"))


def servers(server: EmbeddedPostgres) -> list[int]:
    found = {
        one.pid: one.parent for one in processes.running() if f"postgres -D {server.data} " in one.command
    }
    return [pid for pid, parent in found.items() if parent not in found]


def children(server: EmbeddedPostgres) -> list[int]:
    mark = f"postgres: {server.cluster_name}:"
    return [one.pid for one in processes.running() if one.command.startswith(mark)]


def test_killing_every_process_loses_nothing_committed(postgres: EmbeddedPostgres) -> None:
    query(postgres.owner_url, "create table note as select 7 as id")
    kill(postgres.pid, *children(postgres))
    wait_until(lambda: not postgres.alive())
    postgres.start()
    assert query(postgres.owner_url, "select id from note") == 7


def test_a_killed_server_takes_no_child_into_the_next_run(postgres: EmbeddedPostgres) -> None:
    before = set(children(postgres))
    kill(postgres.pid)
    wait_until(lambda: not postgres.alive())
    postgres.start()
    assert before.isdisjoint(children(postgres))
    assert servers(postgres) == [postgres.pid]


def test_servers_end_with_a_killed_parent(home: Path, launch: Launch) -> None:
    parent = launch(KEEPER, str(home))
    pids = started(parent)
    kill(parent.pid)
    wait_until(lambda: not set(pids) & {one.pid for one in processes.running()})


def test_a_start_right_after_the_parent_was_killed(home: Path, launch: Launch) -> None:
    parent = launch(KEEPER, str(home))
    started(parent)
    kill(parent.pid)
    postgres, redis = EmbeddedPostgres(home), EmbeddedRedis(home)
    try:
        postgres.start()
        redis.start()
        assert query(postgres.service_url, "select 1") == 1
        assert servers(postgres) == [postgres.pid]
    finally:
        redis.stop()
        postgres.stop()


def test_a_server_that_outlived_its_parent_is_ended_first(postgres: EmbeddedPostgres) -> None:
    query(postgres.owner_url, "create table note as select 7 as id")
    # Another view of the same home, as a later run has it, knows nothing of the child of this one.
    later = EmbeddedPostgres(postgres.home)
    later.start()
    try:
        assert not postgres.alive()
        assert servers(later) == [later.pid]
        assert query(later.owner_url, "select id from note") == 7
    finally:
        later.stop()


@pytest.mark.parametrize("state", ["living", "zombie"])
def test_lock_files_that_name_a_stranger_stop_no_start(postgres: EmbeddedPostgres, state: str) -> None:
    """After `kill -9` of everything the number may be anybody's, or nobody may have buried its process."""
    postgres.stop()
    # Not this process: Postgres knows its own parent, and does not mind its number in a lock file.
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as stranger:
        if state == "zombie":
            stranger.kill()
            wait_until(lambda: stranger.pid not in {one.pid for one in processes.running()})
        facts = f"{stranger.pid}\n{postgres.data}\n1\n5432\n{postgres.sockets}\n\n1 1\nready\n"
        (postgres.data / "postmaster.pid").write_text(facts)
        (postgres.sockets / ".s.PGSQL.5432.lock").write_text(facts)
        postgres.start()
        assert query(postgres.service_url, "select 1") == 1
        assert stranger.stdin is not None
        stranger.stdin.close()


@pytest.mark.parametrize("moment", ["half made", "soon"])
def test_a_killed_first_start_is_begun_anew(home: Path, launch: Launch, moment: str) -> None:
    """Killed before it made the roles, or as soon as its first files are seen: it may be ready by then."""
    parent = launch(KEEPER, str(home), moment)
    if moment == "half made":
        assert next_line(parent, parent.stdout) == "starting\n"
        assert next_line(parent, parent.stdout) == "half made\n"
        assert any(home.glob("postgres.partial-*/PG_VERSION"))
    else:
        wait_until(lambda: any(home.glob("postgres*/PG_VERSION")))
    kill(parent.pid)
    server = EmbeddedPostgres(home)
    server.start()
    try:
        assert query(server.service_url, "select current_database()") == "gapless"
        assert not list(home.glob("postgres.partial-*"))
    finally:
        server.stop()


def test_a_start_can_be_interrupted(home: Path) -> None:
    server = EmbeddedPostgres(home, interrupted=lambda: True)
    with pytest.raises(EmbeddedError, match="interrupted"):
        server.start()
    assert not server.alive()


def test_the_home_is_for_one(home: Path, launch: Launch) -> None:
    parent = launch(KEEPER, str(home))
    started(parent)
    with pytest.raises(EmbeddedError, match=rf"served by another Gapless already \(process {parent.pid}\)"):
        HomeLock(home).take()
    kill(parent.pid)
    lock = HomeLock(home)
    wait_until(lambda: taken(lock))
    lock.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_keeps_to_the_owner_of_the_data() -> None:
    folder = Path(tempfile.mkdtemp(prefix="gapless-"))
    server = EmbeddedPostgres(folder / "home")
    try:
        folder.chmod(0o755)
        nobody = pwd.getpwnam("nobody")
        server.start()
        server.stop()
        for parent, names, files in os.walk(server.data):
            for path in (parent, *(os.path.join(parent, name) for name in (*names, *files))):
                os.chown(path, nobody.pw_uid, nobody.pw_gid)
        assert choose(server.data, Path("/bin/true")).kind is Kind.USER
        server.start()
        assert query(server.service_url, "select 1") == 1
        assert Path(f"/proc/{server.pid}").stat().st_uid == nobody.pw_uid
    finally:
        server.stop()
        shutil.rmtree(folder)


def started(parent: subprocess.Popen[str]) -> list[int]:
    assert next_line(parent, parent.stdout) == "starting\n"
    word, *pids = next_line(parent, parent.stdout).split()
    assert word == "started"
    return [int(pid) for pid in pids]


def taken(lock: HomeLock) -> bool:
    try:
        lock.take()
    except EmbeddedError:
        return False
    return True


def test_ending_is_certain() -> None:
    stubborn = subprocess.Popen(
        ["/bin/sh", "-c", "trap '' TERM; echo up; while :; do read -r _ || :; done"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with stubborn:
        assert next_line(stubborn, stubborn.stdout) == b"up\n"
        processes.end(stubborn, [(signal.SIGTERM, 0.05)])
        assert stubborn.returncode == -signal.SIGKILL
