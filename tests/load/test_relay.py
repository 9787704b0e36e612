"""A fake server or a proxy leaves no socket open, whatever happens to it and at whatever step."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
import uvloop

from load.relay import Streams, connected, forward, listening, until_first_ends
from tests.leaks import RecordingLoop
from tests.patience import eventually

LOOPS = {"asyncio": RecordingLoop, "uvloop": uvloop.new_event_loop}
STEPS = 40
"""More steps than any program here takes in the event loop before it waits for the other side."""


def run(loop: str, program: Callable[[], Awaitable[None]]) -> None:
    """Run it, and check that it leaves no file open. `RecordingLoop` tells transports on top of that."""

    async def main() -> None:
        await program()

    before = sockets()
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(main())
        within = sockets()
    assert within - before <= LOOP_SOCKETS, "it left a socket open"
    assert sockets() == before


LOOP_SOCKETS = 2
"""The two ends with which a loop wakes itself."""


def sockets() -> int:
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
        except FileNotFoundError:
            continue
    return count


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await forward(reader, writer)


@pytest.fixture(scope="module")
def tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The server's side and the client's."""
    authority = trustme.CA()
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("localhost").configure_cert(server)
    authority.configure_trust(client)
    return server, client


@pytest.mark.parametrize("loop", LOOPS)
def test_what_is_said_is_heard(loop: str) -> None:
    async def program() -> None:
        async with listening(echo) as port, connected("127.0.0.1", port) as (reader, writer):
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"

    run(loop, program)


def test_under_tls_too(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    def talk(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as plain:
            client = tls[1].wrap_socket(plain, server_hostname="localhost")
            client.sendall(b"hello")
            assert client.recv(5) == b"hello"
            client.close()

    async def program() -> None:
        async with listening(echo, tls=tls[0]) as port:
            for _ in range(10):
                await asyncio.to_thread(talk, port)

    run("asyncio", program)


def test_a_handshake_under_way_is_ended(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async def program() -> None:
        async with Streams() as streams:
            port = await streams.listen(echo, tls=tls[0])
            async with connected("127.0.0.1", port):
                await eventually(lambda: "1 open, 1 served" in repr(streams))

    run("asyncio", program)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_proxy_is_cancelled_at_any_step(loop: str) -> None:
    """Twice, as by a time-out and by the end of the test: the second one comes during the clean-up."""

    async def program() -> None:
        async with listening(echo) as behind:
            for step in range(STEPS):
                task = asyncio.create_task(through_a_proxy(behind))
                for _ in range(step):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                for _ in range(STEPS):
                    await asyncio.sleep(0)

    run(loop, program)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_client_that_connects_is_cancelled_at_any_step(tmp_path: Path, loop: str, kind: str) -> None:
    async def program() -> None:
        async with Streams() as servers:
            port = await servers.listen(echo)
            await servers.listen_unix(echo, tmp_path / "socket")
            for step in range(STEPS):
                async with Streams() as clients:
                    url = f"tcp://127.0.0.1:{port}" if kind == "tcp" else f"unix://{tmp_path}/socket"
                    task = asyncio.create_task(hold(clients, url))
                    for _ in range(step):
                        await asyncio.sleep(0)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task

    run(loop, program)


async def hold(clients: Streams, url: str) -> None:
    async with clients.connected_to(url):
        await asyncio.Event().wait()


async def through_a_proxy(behind: int) -> None:
    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with streams.connected_to(f"tcp://127.0.0.1:{behind}") as (answers, upstream):
            await until_first_ends(forward(reader, upstream), forward(answers, writer))

    async with Streams() as streams:
        port = await streams.listen(proxy)
        reader, writer = await streams.connect("127.0.0.1", port)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        await asyncio.Event().wait()


@pytest.mark.parametrize("loop", LOOPS)
def test_what_was_accepted_at_the_very_end_is_ended(loop: str) -> None:
    async def program() -> None:
        for step in range(STEPS):
            async with Streams() as clients:
                async with listening(echo) as port:
                    connecting = asyncio.create_task(clients.connect("127.0.0.1", port))
                    for _ in range(step):
                        await asyncio.sleep(0)
                with suppress(OSError):
                    await connecting

    run(loop, program)


async def test_dropping_goes_on_listening() -> None:
    async with Streams() as streams, Streams() as clients:
        port = await streams.listen(echo)
        reader, _ = await clients.connect("127.0.0.1", port)
        await eventually(lambda: "1 served" in repr(streams))
        await streams.drop()
        assert await reader.read() == b""
        reader, writer = await clients.connect("127.0.0.1", port)
        writer.write(b"again")
        assert await reader.readexactly(5) == b"again"


async def test_what_a_server_raises_is_raised_at_the_end() -> None:
    async def wrong(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise AssertionError("not what was expected")

    with pytest.raises(AssertionError, match="not what was expected"):
        async with listening(wrong) as port, connected("127.0.0.1", port) as (reader, _):
            assert await reader.read() == b""


async def test_a_client_that_breaks_off_is_no_error() -> None:
    async def wants_more(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(100)

    async with Streams() as streams:
        port = await streams.listen(wants_more)
        async with connected("127.0.0.1", port) as (_, writer):
            writer.write(b"few")
        await streams.served()
