"""An export of history over a plain socket: only what is whole ends as a chunked body does."""

from __future__ import annotations

import json
import socket
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest

from tests.conftest import Serve
from tests.patience import PATIENCE_S, eventually, http_client

CHANNEL = "/v1/channels/export"
MESSAGES = 16
PAYLOAD = "x" * 900_000
"""All of these together are far more than what sockets hold, so the service has to wait for its reader."""
END = b"0\r\n\r\n"


class Reader:
    """An export that is read as far as one wants; the connection is to stay open behind it."""

    def __init__(self, url: str, query: str) -> None:
        where = urlsplit(url)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect((where.hostname, where.port))
        fields = "Host: localhost\r\nAccept: application/x-ndjson\r\n\r\n"
        self._socket.sendall(f"GET {CHANNEL}/messages?{query} HTTP/1.1\r\n{fields}".encode())
        self.body = b""
        while b"\r\n\r\n" not in self.body:
            self.body += self._socket.recv(4096)
        answer, _, self.body = self.body.partition(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        assert b"transfer-encoding: chunked" in answer.lower(), answer

    def read_on(self) -> bool:
        """The rest; whether it ended as a whole body does."""
        with self._socket:
            return self._read_on()

    def _read_on(self) -> bool:
        while not self.body.endswith(END):
            try:
                part = self._socket.recv(1 << 20)
            except ConnectionResetError:
                return False
            if not part:
                return False
            self.body += part
        return True

    def keys(self) -> list[int]:
        """Which messages came whole."""
        text, rest = b"", self.body
        while b"\r\n" in rest:
            size, _, rest = rest.partition(b"\r\n")
            length = int(size, 16)
            text += rest[:length]
            rest = rest[length + 2 :]
        return [int(json.loads(line)["key"]) for line in text.split(b"\n")[:-1]]


async def begun(http: httpx.AsyncClient, url: str, query: str) -> Reader:
    """An export of more than anybody holds for its reader, which has taken next to nothing of it."""
    for n in range(MESSAGES):
        body = {"data": PAYLOAD, "key": str(n)}
        assert (await http.post(f"{CHANNEL}/messages", json=body)).status_code == 201
    return Reader(url, query)


async def drop_the_segment(http: httpx.AsyncClient, owner: asyncpg.Connection) -> None:
    """Retention leaves one message, which lies in the next segment; the one with all others is dropped."""
    before = await owner.fetchval("select min(lower) from gapless.segments")
    assert await owner.fetchval("select gapless.roll_segment(0)")
    await http.post(f"{CHANNEL}/messages", json={"data": 1, "key": str(MESSAGES)})
    answer = await http.put(CHANNEL, json={"retention": {"max_messages": 1}})
    assert answer.status_code == 200

    async def dropped() -> bool:
        return bool(await owner.fetchval("select min(lower) > $1 from gapless.segments", before))

    await eventually(dropped)


async def delete_the_channel(http: httpx.AsyncClient, owner: asyncpg.Connection) -> None:
    async def deleted() -> bool:
        return (await http.delete(CHANNEL)).status_code == 204

    await eventually(deleted)


@pytest.mark.parametrize("order", ["asc", pytest.param("desc", marks=pytest.mark.drill)])
async def test_a_whole_export_ends_as_one(serve: Serve, order: str) -> None:
    """However slowly it is read."""
    service = serve(GAPLESS_SLOW_READER_TIMEOUT="3600")
    async with http_client(service.url) as http:
        reader = await begun(http, service.url, f"order={order}")
        assert (await http.get(CHANNEL)).status_code == 200
        assert reader.read_on()
        wanted = list(range(MESSAGES))
        assert reader.keys() == (wanted if order == "asc" else wanted[::-1])


@pytest.mark.parametrize("lose", [drop_the_segment, delete_the_channel])
@pytest.mark.parametrize(
    "query",
    ["order=asc", pytest.param("order=asc&after=0", marks=pytest.mark.drill), "type=message", "view=latest"],
)
async def test_an_export_whose_rest_is_lost_does_not_end_as_a_whole_one(
    serve: Serve, owner: asyncpg.Connection, lose: object, query: str
) -> None:
    assert callable(lose)
    service = serve(GAPLESS_MAINTENANCE_INTERVAL="0.2", GAPLESS_SLOW_READER_TIMEOUT="3600")
    async with http_client(service.url) as http:
        reader = await begun(http, service.url, query)
        await lose(http, owner)
        ended = reader.read_on()
        assert not ended, reader.keys()
        found = reader.keys()
        assert found == list(range(len(found)))
        assert len(found) < MESSAGES
