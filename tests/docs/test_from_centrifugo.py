"""The programs of docs/howto/migrate-from-centrifugo.md, and what the page says is missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from gapless import Client
from websockets.asyncio.client import ClientConnection, connect

from load import install
from load.children import Child, free_port
from tests.conftest import Serve
from tests.docs.pages import fences
from tests.patience import PATIENCE_S, eventually, in_time
from tests.support import RunningService

PAGE = "docs/howto/migrate-from-centrifugo.md"
SERVER = "events.example.org"
SOCKETS = """
import { createRequire } from "node:module";
globalThis.WebSocket = createRequire(import.meta.url)("ws");
"""
NO_SOCKETS = "delete globalThis.WebSocket;\n"


def socket_of(url: str) -> str:
    """The address of a service's WebSocket."""
    return f"{url.replace('http', 'ws', 1)}/v1/ws"


async def ask(socket: ClientConnection, **command: Any) -> Any:
    """The reply to one command."""
    await socket.send(json.dumps(command))
    while True:
        for line in str(await in_time(socket.recv())).splitlines():
            if json.loads(line).get("id") == command.get("id", 0):
                return json.loads(line)


async def code_of(socket: ClientConnection, **command: Any) -> int:
    return int((await ask(socket, **command))["error"]["code"])


async def test_what_the_page_says_is_missing_is_refused_or_left_out(server_url: str) -> None:
    url = socket_of(server_url)
    async with connect(url, proxy=None, open_timeout=PATIENCE_S) as socket:
        assert await code_of(socket, id=1, connect={"token": "one"}) == 101
        assert "connect" in await ask(socket, id=2, connect={"data": {"any": "thing"}})
        assert await code_of(socket, id=3, subscribe={"channel": "from.one", "token": "one"}) == 101
        assert await code_of(socket, id=4, rpc={"method": "any"}) == 108
        assert await code_of(socket, send={"data": 1}) == 108
        for number, name in enumerate(("user#7", "$user", "chat/lobby", "a room"), 5):
            assert await code_of(socket, id=number, subscribe={"channel": name}) == 107
        assert "subscribe" in await ask(socket, id=9, subscribe={"channel": "chat:lobby"})
        asked = {"channel": "from.two", "delta": "fossil"}
        assert "delta" not in (await ask(socket, id=10, subscribe=asked))["subscribe"]
        tags = {"channel": "from.three", "tf": {"key": "a", "cmp": "eq", "val": "b"}}
        assert await code_of(socket, id=11, subscribe=tags) == 107
        await socket.send(b"\x00")
        await in_time(socket.wait_closed())
        assert socket.close_code == 3501
    binary: Any = ["centrifuge-protobuf"]
    async with connect(url, proxy=None, open_timeout=PATIENCE_S, subprotocols=binary) as socket:
        # SDKs would take no choice for a failure to connect, and try again.
        assert socket.subprotocol == "centrifuge-protobuf"
        await in_time(socket.wait_closed())
        assert socket.close_code == 3501


@pytest.fixture(scope="module")
def node_modules() -> Path:
    """A folder with the JavaScript SDK."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    return install.npm("centrifuge", ["centrifuge", "ws"]) / "node_modules"


@pytest.fixture(scope="module")
def python() -> str:
    """The Python of an environment with the Python SDK."""
    install.pypi("centrifuge", ("centrifuge-python",), "import centrifuge")
    return str(install.python_of("centrifuge"))


@contextmanager
def running(folder: Path, service: RunningService, first: str, *command: str) -> Iterator[Child]:
    """The program of the page that begins with this line, on this service."""
    [text] = [fence.text for fence in fences(PAGE) if fence.text.startswith(f"{first}\n")]
    host = service.url.removeprefix("http://")
    for scheme in ("ws", "http"):
        text = text.replace(f"{scheme}s://{SERVER}", f"{scheme}://{host}")
    program = folder / first.split()[1]
    program.write_text(text)
    child = Child([*command, str(program)], folder / "log").start()
    try:
        yield child
    finally:
        child.stop()


def script(folder: Path, modules: Path, text: str) -> list[str]:
    """The start of a command that runs this first, and finds the SDK."""
    (folder / "node_modules").symlink_to(modules)
    (folder / "first.mjs").write_text(text)
    return ["node", "--import", str(folder / "first.mjs")]


async def over_a_restart(
    serve: Serve, folder: Path, first: str, *command: str, joins: bool = False
) -> list[str]:
    """What the program prints of four messages, two of them published when its server has died, and of a
    client that `joins`."""
    port = str(free_port())
    service = serve("--port", port)
    with running(folder, service, first, *command) as child:
        await eventually(lambda: present(service.url))
        with Client(service.url) as client:
            client.publish("chat.lobby", {"text": "one"})
            client.publish("chat.lobby", {"text": "two"})
        await eventually(lambda: "two" in child.tail())
        service.kill()
        with Client(serve().url) as elsewhere:
            elsewhere.publish("chat.lobby", {"text": "three"})
        again = serve("--port", port)
        with Client(again.url) as client:
            client.publish("chat.lobby", {"text": "four"})
        await eventually(lambda: "four" in child.tail())
        async with connect(socket_of(again.url), proxy=None, open_timeout=PATIENCE_S) as socket:
            await ask(socket, id=1, connect={})
            await ask(socket, id=2, subscribe={"channel": "chat.lobby"})
            await eventually(lambda: not joins or "joined: " in child.tail())
        return child.tail().splitlines()


def present(url: str) -> int:
    """How many clients are on the channel."""
    page = httpx.get(f"{url}/v1/channels/chat.lobby/presence", timeout=PATIENCE_S)
    return int(page.json()["num_clients"])


@pytest.mark.drill
async def test_the_javascript_sdk_recovers_and_sees_who_joins(
    serve: Serve, tmp_path: Path, node_modules: Path
) -> None:
    command = script(tmp_path, node_modules, SOCKETS)
    said = await over_a_restart(serve, tmp_path, "// chat.mjs", *command, joins=True)
    assert [line for line in said if line[0].isdigit()] == ["1 one", "2 two", "3 three", "4 four"]
    assert not any("missing" in line for line in said)


@pytest.mark.drill
async def test_the_python_sdk_recovers(serve: Serve, tmp_path: Path, python: str) -> None:
    said = await over_a_restart(serve, tmp_path, "# follow.py", python)
    assert said == ["1 one", "2 two", "3 three", "4 four"]


@pytest.mark.drill
async def test_without_a_websocket_the_javascript_sdk_uses_a_stream(
    serve: Serve, tmp_path: Path, node_modules: Path
) -> None:
    command = script(tmp_path, node_modules, NO_SOCKETS)
    with running(tmp_path, serve(), "// fallback.mjs", *command) as child:
        assert await eventually(lambda: child.code() is not None)
        assert child.tail().splitlines() == ["connected by http_stream", "history: hello", "present: 1"]
