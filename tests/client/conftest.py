"""The client is a package of its own; where it is not installed, it is taken from the checkout."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("gapless") is None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "client"))

from gapless import Client

from tests.client.faces import AsyncFace, Face, SyncFace
from tests.client.over_websocket import MakeClient, WebSocketClient
from tests.client.raw_server import RawServer


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """Each test with it runs once on either face of the client, with virtual time and no chance."""
    with SyncFace() if request.param == "sync" else AsyncFace() as face:
        yield face


@pytest.fixture(params=["sse", "websocket"])
def make_client(request: pytest.FixtureRequest) -> MakeClient:
    """Makes a blocking client. Each test with it runs once over either way."""
    return Client if request.param == "sse" else WebSocketClient


@pytest.fixture
def client(server_url: str, make_client: MakeClient) -> Iterator[Client]:
    """A client of a service that tests share."""
    with make_client(server_url) as client:
        yield client


Later = Callable[[float], None]


@pytest.fixture
async def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """Moves the clock of the event loop forward by so many seconds: what is due by then is done at once."""
    loop = asyncio.get_running_loop()
    clock, ahead = loop.time, 0.0

    def move(seconds: float) -> None:
        nonlocal ahead
        ahead += seconds

    monkeypatch.setattr(loop, "time", lambda: clock() + ahead)
    return move


async def turns() -> None:
    """Lets every task go on as far as it can without the network."""
    for _ in range(100):
        await asyncio.sleep(0)


@pytest.fixture
def raw_server() -> Iterator[RawServer]:
    """A socket server whose every byte the test decides."""
    with RawServer() as server:
        yield server
