"""The service under uvicorn as it comes keeps the rules of the server of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from app import launch
from app.embedded import EmbeddedPostgres
from app.embedded.processes import running
from load.children import CHECKOUT, Child, free_port, python_path, wait_for_port
from load.install import pypi, python_of
from load.relay import connected
from tests.conftest import Database, External, service_environment
from tests.integration.frames import Frames
from tests.integration.served import worker
from tests.integration.test_emulation import emulated
from tests.integration.test_pull import leave_while_waiting
from tests.patience import PATIENCE_S, eventually, http_client, wait_until
from tests.sse import publish, subscribe

FLOOD = "x" * 250_000
FLOODS = 120
"""So many of them are more than the buffers of two sockets hold."""


@pytest.fixture(scope="module")
def stock(
    postgres: EmbeddedPostgres | External, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Where it listens. A reader that takes nothing for a second is slow."""
    folder = tmp_path_factory.mktemp("stock")
    with worker("uvicorn", postgres, redis_url, folder, GAPLESS_SLOW_READER_TIMEOUT="1") as (url, _):
        yield url


async def measured(url: str, name: str) -> float:
    """A metric by its full name."""
    async with http_client() as client:
        text = (await client.get(f"{url}/metrics")).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/channels", {"host": "rebound.example.org"}, 421),
        ("/v1/channels", {"origin": "https://evil.example.org"}, 403),
        ("/v1/channels", {"sec-fetch-site": "cross-site"}, 403),
        ("/v1/channels?limit=1&x=" + "x" * 17_000, {}, 414),
        ("/v1/channels", {f"x-{number}": "1" for number in range(101)}, 431),
        ("/v1/channels", {"x-long": "x" * 33_000}, 431),
        ("/v1/ws", {"origin": "https://evil.example.org"}, 403),
        ("/v1/ws", {}, 426),
    ],
)
def test_what_may_not_pass_is_refused(stock: str, path: str, headers: dict[str, str], status: int) -> None:
    answer = httpx.get(stock + path, headers=headers, timeout=PATIENCE_S)
    assert answer.status_code == status
    assert answer.json()["status"] == status
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/ws", {"Origin": "https://evil.example.org"}, 403),
        ("/v1/ws", {"Authorization": "Bearer abc"}, 401),
        ("/v1/elsewhere", {}, 404),
    ],
)
def test_a_websocket_that_may_not_be_opened(
    stock: str, path: str, headers: dict[str, str], status: int
) -> None:
    with (
        pytest.raises(InvalidStatus) as refused,
        connect(stock.replace("http", "ws") + path, additional_headers=headers),
    ):
        pass
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body)["status"] == status


@pytest.mark.parametrize(("message", "code"), [(b"binary", 3501), ("x" * (2 * 1024 * 1024 + 1), 1009)])
def test_a_websocket_message_that_is_refused(stock: str, message: str | bytes, code: int) -> None:
    with connect(stock.replace("http", "ws") + "/v1/ws") as client:
        client.send(message)
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(PATIENCE_S)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == code


@pytest.mark.drill
async def test_a_reader_that_takes_nothing_is_cut_off(stock: str) -> None:
    cut = 'gapless_streams_cut_total{reason="slow_consumer"}'
    before = await measured(stock, cut)
    port = int(stock.rpartition(":")[2])
    async with connected("127.0.0.1", port) as (reader, writer):
        writer.write(b"GET /v1/subscribe?channel=flood HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"ready" in await reader.readuntil(b"event: ready")
        # A listening socket of the test's loop would read ahead; this one leaves its bytes with the kernel.
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(FLOODS):
            await publish(stock, "flood", FLOOD)
        await eventually(lambda: measured_above(stock, cut, before))
        await eventually(lambda: streams(stock, 0))


@pytest.mark.drill
async def test_a_websocket_that_takes_nothing_is_cut_off(stock: str) -> None:
    cut = 'gapless_streams_cut_total{reason="slow_consumer"}'
    before = await measured(stock, cut)
    frames = await Frames.open(stock)
    assert "subscribe" in await frames.ask("subscribe", channel="torrent")
    frames.connection.transport.pause_reading()
    for _ in range(FLOODS):
        await publish(stock, "torrent", FLOOD)
    await eventually(lambda: measured_above(stock, cut, before))
    frames.drop()


async def measured_above(url: str, name: str, before: float) -> bool:
    """Whether it has risen."""
    return await measured(url, name) > before


async def streams(url: str, count: int) -> bool:
    """Whether so many streams are open."""
    return await measured(url, "gapless_streams") == count


async def test_who_leaves_is_forgotten(stock: str) -> None:
    async with subscribe(stock, "leaving") as stream:
        await stream.until("ready")
        await eventually(lambda: streams(stock, 1))
    await eventually(lambda: streams(stock, 0))


async def test_a_pull_whose_client_left_leases_nothing(stock: str) -> None:
    await leave_while_waiting(stock)


@pytest.fixture
def stopping(
    postgres: EmbeddedPostgres | External, redis_url: str, tmp_path: Path
) -> Iterator[tuple[str, Child]]:
    """One that is stopped by its test."""
    with worker("uvicorn", postgres, redis_url, tmp_path) as served:
        yield served


async def test_all_are_told_when_it_stops(stopping: tuple[str, Child]) -> None:
    url, child = stopping
    assert child.process is not None
    frames = await Frames.open(url)
    async with subscribe(url, "ending") as stream, emulated(url, "http_stream") as client:
        await stream.until("ready")
        child.process.send_signal(signal.SIGTERM)
        assert (await stream.until("goodbye"))[-1].json == {"reason": "shutdown"}
        assert (await client.push("disconnect"))["disconnect"]["code"] == 3001
    with pytest.raises(ConnectionClosed):
        await frames.next()
    assert frames.connection.close_code == 3001
    # uvicorn ends by the signal itself once all is done.
    assert await asyncio.to_thread(child.process.wait, PATIENCE_S) == -signal.SIGTERM
    assert "Traceback" not in child.log.read_text()


HTTP_TESTS = ("publish", "history", "subscribe", "pull", "smoke", "bad_definitions", "bad_input")
MALFORMED = (
    "100 KB of target",
    "CL and TE",
    "two CL",
    "CL -1",
    "TE: xchunked",
    "NUL in a header",
    "CR in a header",
    "space before the colon",
    "folded header",
    "bare LF",
    "not HTTP",
    "bad chunk",
    "method FOO",
)
OF_THE_SERVER = (
    *(f"test_bad_input.py::test_is_refused_and_stores_nothing[{case}]" for case in MALFORMED),
    "test_bad_definitions.py::test_is_refused_and_changes_nothing[FOO ",
    "test_bad_input.py::test_what_never_ends_is_cut_off_in_ten_seconds",
    # It names the addresses of pages without a prefix; test_prefix.py names them with one.
    "test_smoke.py::test_no_page_asks_another_host_for_anything",
)
"""What the server answers before the application is asked."""
UVICORN = ("-m", "uvicorn", "app.main:app", "--port")
# The interpreter's own packages come first.
CLI = "import sys; sys.path.append(sys.argv.pop(1)); from fastapi_cli.cli import main; main()"


@contextmanager
def alone(folder: Path, *program: str) -> Iterator[tuple[str, Child]]:
    """It is started as its users would, with nothing but a home. `program` ends before the port."""
    port = free_port()
    given = ("-uGAPLESS_DATABASE_URL", "-uGAPLESS_REDIS_URL")
    environment = {"GAPLESS_HOME": str(folder / "home"), "PYTHONPATH": python_path()}
    command = ("env", *given, sys.executable, "-P", *program, str(port))
    child = Child(command, folder / "log", environment)
    child.start()
    try:
        wait_for_port(port, child)
        yield f"http://127.0.0.1:{port}", child
    finally:
        child.stop(PATIENCE_S)


def test_without_servers_of_its_own_the_process_beside_it_ends(
    database: Database, redis_url: str, tmp_path: Path
) -> None:
    environment = {**os.environ, **service_environment(database, redis_url, tmp_path)}
    command = launch.command("app.cli.companion")
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as companion:
        assert companion.stdout is not None
        # Its end, while its standard input is still open.
        assert json.loads(companion.stdout.read())["redis_url"] == redis_url
        assert companion.wait(PATIENCE_S) == 0


async def test_it_starts_its_servers_and_they_end_with_it(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    with alone(tmp_path, *UVICORN) as (url, child):
        assert child.process is not None
        assert (await publish(url, "first", 1))[0]["seq"] == 1
        assert any(home in process.command for process in running())
        child.process.kill()
        child.process.wait()
        wait_until(lambda: not any(home in process.command for process in running()))


@pytest.mark.drill
async def test_its_servers_come_back_when_the_process_that_runs_them_is_killed(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    with alone(tmp_path, *UVICORN) as (url, child):
        assert child.process is not None
        assert (await publish(url, "first", 1))[0]["seq"] == 1
        (companion,) = (process for process in running() if process.parent == child.process.pid)
        os.kill(companion.pid, signal.SIGKILL)
        # A publish may be stored before the servers end with it, so it has a key.
        await eventually(lambda: published(url, "first"))
        assert (await publish(url, "first", 3))[0]["seq"] == 3
        child.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(child.process.wait, PATIENCE_S) == -signal.SIGTERM
        wait_until(lambda: not any(home in process.command for process in running()))
        assert "Traceback" not in child.log.read_text()
        assert child.log.read_text().count("starting another one") == 1


async def published(url: str, channel: str) -> bool:
    """Whether one message is stored, however often this is called."""
    async with http_client(url) as client:
        headers = {"idempotency-key": "again"}
        answer = await client.post(f"/v1/channels/{channel}/messages", json={"data": 2}, headers=headers)
        return answer.is_success


@pytest.mark.drill
def test_the_http_tests_pass_under_it_with_a_prefix() -> None:
    """A run of their own, in which the service that they share is under uvicorn."""
    files = [f"tests/integration/test_{name}.py" for name in HTTP_TESTS]
    left_out = [f"--deselect=tests/integration/{test}" for test in OF_THE_SERVER]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-m", "not drill", *left_out, *files],
        env={**os.environ, "GAPLESS_TESTS_UNDER": "uvicorn-prefix"},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr


@pytest.mark.drill
async def test_fastapi_runs_it(tmp_path: Path) -> None:
    pypi("fastapi-cli", ["fastapi-cli"], "import fastapi_cli; print(fastapi_cli)")
    (site,) = python_of("fastapi-cli").parent.parent.glob("lib/*/site-packages")
    run = ("-c", CLI, str(site), "run", "app/main.py", "--host", "127.0.0.1", "--port")
    with alone(tmp_path, *run) as (url, _):
        assert (await publish(url, "first", 1))[0]["seq"] == 1
