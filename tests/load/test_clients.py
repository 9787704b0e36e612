"""The cutting proxy, and that load knows nothing of the server."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosedError
from websockets.frames import CloseCode, Frame, Opcode

import load
from load.chat.follower import Crowd, Follower
from load.clients.proxy import (
    BEYOND,
    PER_CONNECTION,
    CuttingProxy,
    cut_of_websocket,
    end_of_message,
    end_of_publication,
)
from load.history import History
from load.sse import Event, Stream
from load.wire import Connection, Target
from tests.load.fake_service import FakeService
from tests.patience import PATIENCE_S, eventually, in_time


def test_the_cut_lies_right_behind_the_block() -> None:
    stream = b'HTTP/1.1 200 OK\r\n\r\n5\r\nretry: 1\nid: 1\ndata: {"id":1}\n\nid: 2\ndata: {"id":2}\n\nid: 3'
    end = end_of_message(stream, 2)
    assert end is not None
    assert stream[:end].endswith(b'data: {"id":2}\n\n')
    assert end_of_message(stream, 3) is None


def test_the_cut_lies_right_behind_the_line_of_the_publication() -> None:
    said = b'{"id":1}\n{"push":{"pub":{"id":1}}}\n{"push":{"pub":{"id":2}}}\n{"push":{"pub":{"id":3'
    end = end_of_publication(said, 2)
    assert end is not None
    assert said[:end].endswith(b'{"push":{"pub":{"id":2}}}\n')
    assert end_of_publication(said, 3) is None


async def _one_connection(target: Target) -> list[Event]:
    got: list[Event] = []
    closed = asyncio.Event()
    request = target.request("GET", "/v1/subscribe?channel=c&after=0")
    stream = Stream(request, lambda status, head: None, got.extend, closed.set)
    await asyncio.get_running_loop().create_connection(lambda: stream, target.host, target.port)
    await in_time(closed.wait())
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
        await proxy.stop()


async def test_a_reader_behind_the_proxy_gets_everything() -> None:
    async with FakeService().running() as service:
        for n in range(30):
            await service.publish("c", {"n": n})
        proxy = CuttingProxy(service.target)
        history = History()
        crowd = Crowd(history, await proxy.start())
        follower = Follower(crowd, history.cursor("one", ("c",)), random.Random(1))
        task = asyncio.create_task(follower.run())
        await eventually(lambda: len(follower.cursor.ids) >= 30)
        follower.stop()
        await task
        await proxy.stop()
    assert follower.cursor.ids.tolist() == list(range(1, 31))
    assert proxy.cuts == 4


def _publication(seq: int, text: str = "") -> str:
    return f'{{"push":{{"channel":"c","pub":{{"id":{seq},"data":"{text}","offset":{seq}}}}}}}'


def _frames(*messages: str) -> bytes:
    return b"".join(Frame(Opcode.TEXT, text.encode()).serialize(mask=False) for text in messages)


@pytest.mark.parametrize("size", [0, 200, 70_000], ids=["7 bits", "16 bits", "64 bits"])
def test_a_websocket_is_cut_right_behind_the_frame_or_so_many_bytes_later(size: int) -> None:
    answer = b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + _frames('{"id":1,"connect":{}}')
    whole = answer + _frames(_publication(1), "{}", _publication(2, "x" * size))
    seen = whole + _frames(_publication(3))
    assert cut_of_websocket(seen, 2, 0) == len(whole)
    assert cut_of_websocket(seen, 2, 40) == len(whole) + 40


def test_a_websocket_is_not_cut_before_it_has_come_so_far() -> None:
    whole = b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + _frames(_publication(1), _publication(2, "x" * 200))
    assert [end for end in range(len(whole)) if cut_of_websocket(whole[:end], 2, 0) is not None] == []
    assert cut_of_websocket(whole, 2, 0) == len(whole)
    assert cut_of_websocket(whole, 2, 1) is None
    assert cut_of_websocket(whole, 3, 0) is None


async def test_each_websocket_through_the_proxy_is_cut_after_seven_publications() -> None:
    asked: list[str | bytes] = []

    async def publish(client: ServerConnection) -> None:
        asked.append(await client.recv())
        for seq in range(1, 30):
            await client.send(_publication(seq))
        await client.wait_closed()

    patient: dict[str, Any] = {"open_timeout": PATIENCE_S, "ping_interval": None}
    async with serve(publish, "127.0.0.1", 0, compression=None, **patient) as server:
        host, port = next(iter(server.sockets)).getsockname()
        proxy = CuttingProxy(Target(host, port))
        at = await proxy.start()
        for number in range(2 * len(BEYOND)):
            got: list[str | bytes] = []
            async with connect(f"ws://{at.host}:{at.port}/v1/ws", proxy=None, **patient) as client:
                await client.send(f"command {number}")
                with contextlib.suppress(ConnectionClosedError):
                    while True:
                        got.append(await client.recv())
                assert client.close_code == CloseCode.ABNORMAL_CLOSURE
            assert got == [_publication(seq) for seq in range(1, PER_CONNECTION + 1)]
            assert asked[-1] == f"command {number}"
            assert proxy.cuts == number + 1
        await proxy.stop()


def test_load_imports_nothing_of_the_server() -> None:
    forbidden = {"app", "subscriptions", "cache", "db", "gapless", "console", "pipeline"}
    for path in Path(load.__file__).parent.rglob("*.py"):
        if "results" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not forbidden & {name.split(".")[0] for name in names}, path
