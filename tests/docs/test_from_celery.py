"""The programs of docs/howto/migrate-from-celery.md: the worker, and Celery beside it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from gapless import Client

from load import install
from load.children import Child
from tests.conftest import Serve
from tests.docs.pages import fences, read
from tests.patience import PATIENCE_S, eventually
from tests.support import ROOT

PAGE = "docs/howto/migrate-from-celery.md"
DEFAULTS = """
import json
from celery import Task
from celery.app.defaults import DEFAULTS as said
from kombu.transport.redis import Channel
print(json.dumps({
    "worker_prefetch_multiplier": said["worker_prefetch_multiplier"],
    "task_acks_on_failure_or_timeout": said["task_acks_on_failure_or_timeout"],
    "acks_late": said["task_acks_late"],
    "task_reject_on_worker_lost": said["task_reject_on_worker_lost"],
    "max_retries": Task.max_retries,
    "default_retry_delay": Task.default_retry_delay,
    "visibility_timeout": Channel.visibility_timeout,
}))
"""


def write(folder: Path, *firsts: str) -> None:
    """Write the modules of the page that begin with these lines."""
    for first in firsts:
        [text] = [fence.text for fence in fences(PAGE) if fence.text.startswith(f"{first}\n")]
        (folder / first.split()[1].strip(",")).write_text(text)


@contextmanager
def running(folder: Path, python: str, *arguments: str, **environment: str) -> Iterator[Child]:
    """A program in this folder, which imports the client."""
    path = os.pathsep.join([str(folder), str(ROOT / "client")])
    command = ["env", f"--chdir={folder}", python, *arguments]
    log = folder / f"{arguments[-1]}.log"
    child = Child(command, log, {"PYTHONPATH": path, **environment}).start()
    try:
        yield child
    finally:
        child.stop(PATIENCE_S)


def charged(folder: Path) -> list[str]:
    """The lines that `charge` has written."""
    file = folder / "charged"
    return file.read_text().splitlines() if file.exists() else []


async def test_the_worker_does_what_it_can_and_tells_the_rest(serve: Serve, tmp_path: Path) -> None:
    url = serve().url
    write(tmp_path, "# jobs.py", "# worker.py")
    with running(tmp_path, sys.executable, "worker.py", GAPLESS_URL=url) as worker, Client(url) as client:
        for kind, cents in (("charge", 4200), ("charge", 0), ("refund", 5)):
            client.publish(f"jobs.{kind}", {"order": 7, "cents": cents}, type=kind)
        await eventually(lambda: len(list(client.dead_letters.list())) == 2)
        await eventually(lambda: charged(tmp_path) == ["7 4200"])
        told = {(dead.reason, dead.last_error) for dead in client.dead_letters.list()}
        worker.stop(PATIENCE_S)
        assert worker.code() == 0, worker.tail()
    assert told == {("rejected", "order 7 costs 0"), ("rejected", "no job is called refund")}


@pytest.fixture(scope="module")
def celery() -> str:
    """The Python of an environment with Celery."""
    install.pypi("celery", ("celery[redis]", "httpx"), "import celery, redis, httpx")
    return str(install.python_of("celery"))


def broker_of(redis_url: str) -> str:
    """The URL of a database of this Redis that Celery understands."""
    if redis_url.startswith("unix://"):
        return f"redis+socket{redis_url.removeprefix('unix').partition('?')[0]}?virtual_host=5"
    return f"{redis_url}/5"


def call(celery: str, folder: Path, broker: str, *lines: str) -> None:
    """Run these lines as a caller of the task."""
    code = "\n".join(["from tasks import charge", *lines])
    paths = {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "client")])}
    environment = {**os.environ, **paths, "BROKER_URL": broker}
    done = subprocess.run(
        [celery, "-c", code], env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.drill
async def test_celery_passes_on_what_it_gets_while_callers_move(
    serve: Serve, redis_url: str, tmp_path: Path, celery: str
) -> None:
    url, broker = serve().url, broker_of(redis_url)
    own = {"BROKER_URL": broker, "GAPLESS_URL": url}
    arguments = ("-m", "celery", "-A", "tasks", "worker", "-c", "2", "--loglevel", "WARNING")
    write(tmp_path, "# jobs.py", "# worker.py", "# tasks.py")
    with running(tmp_path, celery, *arguments, **own):
        await asyncio.to_thread(call, celery, tmp_path, broker, "charge.delay(1, 10)")
        await eventually(lambda: charged(tmp_path) == ["1 10"])
    write(tmp_path, "# tasks.py, from step 2 on")
    with (
        running(tmp_path, sys.executable, "worker.py", GAPLESS_URL=url),
        running(tmp_path, celery, *arguments, **own),
        Client(url) as client,
    ):
        lines = (
            "for order in range(2, 22): charge.delay(order, order)",
            "charge.apply_async((22, 22), countdown=2)",
            "for _ in range(2): charge.apply_async((23, 23), task_id='one and the same')",
        )
        await asyncio.to_thread(call, celery, tmp_path, broker, *lines)
        client.publish("jobs.charge", {"order": 24, "cents": 24}, type="charge", key="order-24")
        await eventually(lambda: len(charged(tmp_path)) >= 24)
        stored = [message.data["order"] for message in client.iter_history("jobs.charge")]
        await eventually(lambda: client.subscriptions.length("shop").lag == 0)
    assert sorted(stored) == list(range(2, 25))
    assert sorted(map(int, (line.split()[0] for line in charged(tmp_path)))) == list(range(1, 25))


@pytest.mark.drill
def test_the_defaults_that_the_page_names_are_those_of_celery(celery: str) -> None:
    said = json.loads(subprocess.check_output([celery, "-c", DEFAULTS], text=True))
    page = read(PAGE)
    numbers = dict(re.findall(r"`(worker_prefetch_multiplier|default_retry_delay)` \((\d+)", page))
    assert numbers == {name: str(said[name]) for name in numbers}
    assert len(numbers) == 2
    assert "`task_acks_on_failure_or_timeout` (on)" in page
    assert said["task_acks_on_failure_or_timeout"]
    assert "`task_reject_on_worker_lost` (off)" in page
    assert not said["task_reject_on_worker_lost"]
    assert "`acks_late=False`, the default" in page
    assert not said["acks_late"]
    assert f"`max_retries=n` ({said['max_retries']})" in page
    assert "`visibility_timeout` (Redis: 1 hour)" in page
    assert said["visibility_timeout"] == 3600
