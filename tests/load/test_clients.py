"""The cutting proxy, and that load knows nothing of the server."""

from __future__ import annotations

import ast
import asyncio
import random
from pathlib import Path

import load
from load.chat.follower import Crowd, Follower
from load.clients.proxy import PER_CONNECTION, CuttingProxy, end_of_message
from load.history import History
from load.sse import Event, Stream
from load.wire import Connection, Target
from tests.load.fake_service import FakeService


def test_the_cut_lies_right_behind_the_block() -> None:
    stream = b'HTTP/1.1 200 OK\r\n\r\n5\r\nretry: 1\nid: 1\ndata: {"id":1}\n\nid: 2\ndata: {"id":2}\n\nid: 3'
    end = end_of_message(stream, 2)
    assert end is not None
    assert stream[:end].endswith(b'data: {"id":2}\n\n')
    assert end_of_message(stream, 3) is None


async def _one_connection(target: Target) -> list[Event]:
    got: list[Event] = []
    closed = asyncio.Event()
    request = target.request("GET", "/v1/subscribe?channel=c&after=0")
    stream = Stream(request, lambda status, head: None, got.extend, closed.set)
    await asyncio.get_running_loop().create_connection(lambda: stream, target.host, target.port)
    await asyncio.wait_for(closed.wait(), 5)
    return [event for event in got if event[2] == b""]


async def test_a_stream_through_the_proxy_ends_after_seven_messages() -> None:
    async with FakeService().running() as service:
        for n in range(30):
            await service.publish("c", {"n": n})
        proxy = CuttingProxy(service.target, b"<p>hello</p>")
        at = await proxy.start()
        assert len(await _one_connection(at)) == PER_CONNECTION
        assert proxy.cuts == 1
        connection = await Connection.open(at)
        page = await connection.ask(at.request("GET", "/own-page"))
        assert (page.status, page.body) == (200, b"<p>hello</p>")
        connection.close()
        proxy.stop()


async def test_a_reader_behind_the_proxy_gets_everything() -> None:
    async with FakeService().running() as service:
        for n in range(30):
            await service.publish("c", {"n": n})
        proxy = CuttingProxy(service.target)
        history = History()
        crowd = Crowd(history, await proxy.start())
        follower = Follower(crowd, history.cursor("one", ("c",)), random.Random(1))
        task = asyncio.create_task(follower.run())
        for _ in range(500):
            if len(follower.cursor.ids) >= 30:
                break
            await asyncio.sleep(0.01)
        follower.stop()
        await task
        proxy.stop()
    assert follower.cursor.ids.tolist() == list(range(1, 31))
    assert proxy.cuts == 4


def test_load_imports_nothing_of_the_server() -> None:
    forbidden = {"app", "subscriptions", "cache", "db", "gapless", "console", "pipeline"}
    for path in Path(load.__file__).parent.rglob("*.py"):
        if "results" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not forbidden & {name.split(".")[0] for name in names}, path
