"""What runs comes back, what is stopped is gone, and a request finds a worker throughout."""

import json
import os
import signal
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.embedded import EmbeddedPostgres, EmbeddedRedis, processes
from tests.embedded.support import Launch, kill, query
from tests.patience import PATIENCE_S, wait_until

SERVE = str(Path(__file__).with_name("serve.py"))
WORKER = str(Path(__file__).with_name("worker.py"))


class Serving:
    """A running supervisor, its port, and the output it has given so far."""

    def __init__(self, launch: Launch, home: Path, workers: int = 1, port: int = 0, **given: str) -> None:
        self.home = home
        settings = {"PATIENCE_S": str(PATIENCE_S), **given}
        self.process = launch(SERVE, str(home), str(port), str(workers), **settings)
        self.output = ""

    def read_until(self, text: str) -> str:
        """The line with this text; fails with all the output when there is none."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if text in line:
                return line
        raise AssertionError(f"no {text!r} in:\n{self.output}")

    def ready(self) -> "Serving":
        self.url = self.read_until("Gapless is ready on ").split()[-1]
        return self

    def ask(self) -> dict[str, Any]:
        with urllib.request.urlopen(self.url, timeout=PATIENCE_S) as answer:
            facts: dict[str, Any] = json.load(answer)
            return facts

    def workers(self) -> list[int]:
        url = EmbeddedPostgres(self.home).service_url
        return [pid for pid in running(WORKER) if was_given(pid, f"GAPLESS_DATABASE_URL={url}")]

    def servers(self) -> list[int]:
        return [*running(f"-D {self.home}/postgres "), *running(f"{self.home}/run/redis.sock")]

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)


def running(mark: str) -> list[int]:
    found = [
        one for one in processes.running() if mark in one.command and "exec_server.py" not in one.command
    ]
    # A child of Postgres just forked still bears its parent's command line.
    return [one.pid for one in found if one.parent not in {other.pid for other in found}]


def was_given(pid: int, variable: str) -> bool:
    try:
        return variable.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


@pytest.fixture
def serving(launch: Launch, home: Path) -> Iterator[Serving]:
    supervisor = Serving(launch, home, workers=2).ready()
    yield supervisor
    if supervisor.process.poll() is None:
        supervisor.stop()


def test_it_says_what_it_does_and_serves(serving: Serving) -> None:
    assert f"using an embedded Postgres in {serving.home}" in serving.output
    assert "prepare postgresql://gapless_owner@" in serving.output
    assert ("running as root" in serving.output) is (os.geteuid() == 0)
    facts = serving.ask()
    assert facts["role"] == "gapless_service"
    assert facts["keepalive"] == 1
    assert len(serving.workers()) == 2


def test_stopping_leaves_nothing_behind(serving: Serving) -> None:
    assert serving.stop() == 0
    assert serving.workers() == []
    assert serving.servers() == []


def test_ctrl_c_is_a_stop_too(serving: Serving) -> None:
    assert serving.stop(signal.SIGINT) == 0


def test_a_killed_worker_is_replaced_while_the_other_serves(serving: Serving) -> None:
    victim, other = serving.workers()
    kill(victim)
    wait_until(lambda: len(serving.workers()) == 2 and victim not in serving.workers())
    assert other in serving.workers()
    assert "ended with signal 9" in serving.read_until("worker ")
    wait_until(lambda: serving.ask()["restarts"] == "1")


@pytest.mark.realtime("how soon a server that died is back is a matter of the clock")
@pytest.mark.parametrize("name", ["Postgres", "Redis"])
def test_a_killed_server_is_back_within_a_second(serving: Serving, name: str) -> None:
    mark = "-D " if name == "Postgres" else "redis.sock"
    victim = next(pid for pid in serving.servers() if pid in running(mark))
    killed_at = time.monotonic()
    kill(victim)
    serving.read_until(f"{name} is back after")
    # A second is the aim; the rest is for a busy test machine, and more of it for a slow one.
    assert time.monotonic() - killed_at < 2.0 * PATIENCE_S / 60
    assert serving.ask()["role"] == "gapless_service"


def test_a_reload_replaces_every_worker_and_misses_no_request(serving: Serving) -> None:
    before = set(serving.workers())
    serving.process.send_signal(signal.SIGHUP)
    answered_by = set()
    while before & set(serving.workers()):
        answered_by.add(serving.ask()["pid"])
    assert len(serving.workers()) == 2
    assert answered_by


def test_a_second_one_on_the_same_home_is_refused(serving: Serving, launch: Launch) -> None:
    second = Serving(launch, serving.home)
    assert second.process.wait(PATIENCE_S) == 1
    assert f"served by another Gapless already (process {serving.process.pid})" in second.read_until(
        "served by"
    )
    assert serving.ask()["role"] == "gapless_service"


def test_a_taken_port_is_told(launch: Launch, home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        supervisor = Serving(launch, home, port=other.getsockname()[1], LISTEN_S="0.1")
        assert "another program listens there" in supervisor.read_until("cannot listen")
        assert supervisor.process.wait(PATIENCE_S) == 1
        assert supervisor.servers() == []


def test_killed_it_takes_everything_along_and_can_start_at_once(serving: Serving, launch: Launch) -> None:
    port = int(serving.url.rsplit(":", 1)[1])
    query(EmbeddedPostgres(serving.home).owner_url, "create table note as select 7 as id")
    old = {*serving.workers(), *serving.servers()}
    kill(serving.process.pid)
    second = Serving(launch, serving.home, port=port).ready()
    assert second.ask()["role"] == "gapless_service"
    assert old.isdisjoint({*second.workers(), *second.servers()})
    assert query(EmbeddedPostgres(serving.home).owner_url, "select id from note") == 7
    assert second.stop() == 0


def test_a_worker_that_does_not_stop_is_killed(launch: Launch, home: Path) -> None:
    supervisor = Serving(launch, home, WORKER="stubborn", STOP_S="1").ready()
    assert supervisor.stop() == 0
    assert supervisor.workers() == []


def test_workers_that_never_serve_end_it(launch: Launch, home: Path) -> None:
    supervisor = Serving(launch, home, WORKER="broken")
    supervisor.read_until("giving up")
    assert supervisor.process.wait(PATIENCE_S) == 1
    assert "this worker cannot start" in supervisor.output


def test_a_stop_while_it_starts(launch: Launch, home: Path) -> None:
    supervisor = Serving(launch, home)
    supervisor.read_until("using an embedded Postgres")
    assert supervisor.stop() == 0
    assert supervisor.servers() == []


def test_given_both_urls_it_starts_no_server(launch: Launch, home: Path, tmp_path: Path) -> None:
    postgres, redis = EmbeddedPostgres(home), EmbeddedRedis(home)
    postgres.start()
    redis.start()
    try:
        supervisor = Serving(
            launch, tmp_path / "unused", DATABASE=postgres.service_url, REDIS=redis.url
        ).ready()
        assert supervisor.ask()["role"] == "gapless_service"
        assert "using an embedded" not in supervisor.output
        assert not (tmp_path / "unused").exists()
        assert supervisor.stop() == 0
        assert os.path.exists(redis.socket)
    finally:
        redis.stop()
        postgres.stop()
