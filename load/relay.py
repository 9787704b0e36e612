"""Connections of fake servers and proxies. Each has an owner, and none is left open.

`asyncio.start_server` and `open_connection` leave that to their callers: on Python 3.11 a server's
connections outlive it, what it accepts in the turn of its close is forgotten, a handler that is cancelled
before its first step never reaches its `finally`, and a second cancellation skips what a `finally` does after
an await. Here a connection belongs to its `Streams` as soon as its socket exists. At the end all are aborted
first, and waited for afterwards.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
"""Serves one connection, which is closed when this returns and aborted when it fails. A connection that
breaks off is no error."""

PIECE_BYTES = 65536
BACKLOG = 1000
_BREAKS_OFF = (OSError, asyncio.IncompleteReadError)
_TURNS = 8
"""So many turns of the event loop after its abortion, the socket of a connection is closed."""


class _Connection(asyncio.StreamReaderProtocol):
    """One connection. It enters the books of its owner when its transport is made, and leaves them when the
    transport has ended."""

    def __init__(self, owner: Streams, serve: Serve | None = None, over_tls: bool = False) -> None:
        self._loop = asyncio.get_running_loop()
        self.reader = asyncio.StreamReader(loop=self._loop)
        super().__init__(self.reader, loop=self._loop)
        self._owner = owner
        self._serve = serve
        self._over_ssl = over_tls  # A client's end may come before `connection_made`.
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport = cast(asyncio.Transport, transport)
        self.writer = asyncio.StreamWriter(self.transport, self, self.reader, self._loop)
        if self._owner.opened(self) and self._serve is not None:
            self._owner.serve(self._serve, self.reader, self.writer)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._owner.lost(self)

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class _Handshake(asyncio.Protocol):
    """A connection on its way to TLS. `create_server(ssl=…)` would show it after the handshake only."""

    def __init__(self, owner: Streams, serve: Serve, tls: ssl.SSLContext) -> None:
        self._owner, self._serve, self._tls = owner, serve, tls
        self._plain: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._plain = cast(asyncio.Transport, transport)
        self._plain.pause_reading()  # Its first bytes belong to the handshake.
        if self._owner.opened(self):
            self._owner.run(self._shake(self._plain)).add_done_callback(lambda _: self._owner.lost(self))

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.lost(self)

    async def _shake(self, plain: asyncio.Transport) -> None:
        made = _Connection(self._owner, self._serve, over_tls=True)
        loop = asyncio.get_running_loop()
        secured = await loop.start_tls(plain, made, self._tls, server_side=True)
        assert secured is not None
        made.connection_made(secured)

    def abort(self) -> None:
        if self._plain is not None:
            self._plain.abort()


class Streams:
    """The connections of one helper, accepted and opened. `close` ends them all, and so does `async with`.

    At the end what serves a connection is cancelled. What a `Serve` has raised is raised then, unless the
    block itself has raised something.
    """

    def __init__(self) -> None:
        self._open: set[_Connection | _Handshake] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._beginning: set[asyncio.Task[None]] = set()
        self._listeners: list[socket.socket] = []
        self._closed = False
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        return f"<Streams {len(self._open)} open, {len(self._tasks)} served, closed={self._closed}>"

    async def __aenter__(self) -> Streams:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()
        if self._failure is not None and error is None:
            raise self._failure

    async def listen(self, serve: Serve, port: int = 0, tls: ssl.SSLContext | None = None) -> int:
        """Serve connections to this port of loopback. Returns the port; 0 asks for a free one. Raises OSError
        if it is taken. Under TLS, the event loop must be asyncio's own: uvloop takes the first bytes."""
        listener = socket.create_server(("127.0.0.1", port), backlog=BACKLOG)
        self._accept(listener, serve, tls)
        return int(listener.getsockname()[1])

    async def listen_unix(self, serve: Serve, path: str | Path) -> None:
        """Serve connections to a socket file."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(path))
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        self._accept(listener, serve)

    def _accept(self, listener: socket.socket, serve: Serve, tls: ssl.SSLContext | None = None) -> None:
        listener.setblocking(False)
        self._listeners.append(listener)

        def accept() -> None:
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            made = _Connection(self, serve) if tls is None else _Handshake(self, serve, tls)
            self._adopt(accepted, made)

        asyncio.get_running_loop().add_reader(listener, accept)

    def _adopt(self, connected: socket.socket, made: _Connection | _Handshake) -> asyncio.Task[None]:
        """Make a connection of a connected socket, in a task that nobody cancels: uvloop would close the
        transport without a word to its protocol. It takes a few turns of the event loop."""
        loop = asyncio.get_running_loop()

        async def one() -> None:
            await loop.connect_accepted_socket(lambda: made, connected)

        def ended(task: asyncio.Task[None]) -> None:
            self._beginning.discard(task)
            if task.cancelled() or task.exception() is not None:
                connected.close()

        task = loop.create_task(one())
        self._beginning.add(task)
        task.add_done_callback(ended)
        return task

    async def connect(self, host: str, port: int) -> Pair:
        """Open a connection. A name is looked up as IPv4. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return await self._open_one(socket.socket(family), (host, port))

    async def connect_unix(self, path: str | Path) -> Pair:
        """Open a connection to a socket file. Raises OSError."""
        return await self._open_one(socket.socket(socket.AF_UNIX), str(path))

    async def _open_one(self, ours: socket.socket, address: tuple[str, int] | str) -> Pair:
        """Connect the socket, which may be cancelled, and then make a connection of it, which may not."""
        ours.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(ours, address)
        except BaseException:
            ours.close()
            raise
        made = _Connection(self)
        beginning = self._adopt(ours, made)
        try:
            await asyncio.shield(beginning)
        except asyncio.CancelledError:
            beginning.add_done_callback(lambda _: made.abort())
            raise
        return made.reader, made.writer

    @asynccontextmanager
    async def connected_to(self, url: str) -> AsyncIterator[Pair]:
        """A connection to what a URL of Redis or Postgres names, while the block runs. It is aborted if the
        block fails or is cancelled."""
        _, writer = pair = await self._reach(url)
        try:
            yield pair
        except BaseException:
            writer.transport.abort()
            raise
        writer.close()

    async def _reach(self, url: str) -> Pair:
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return await self.connect_unix(parts.path)
        if parts.hostname is None:  # Postgres on a socket file
            (folder,) = parse_qs(parts.query)["host"]
            return await self.connect_unix(f"{folder}/.s.PGSQL.5432")
        assert parts.port is not None
        return await self.connect(parts.hostname, parts.port)

    async def served(self) -> None:
        """Wait until every connection that was accepted has been served."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def drop(self) -> None:
        """Abort all connections, cancel what serves them, and go on listening."""
        tasks = list(self._tasks)
        for connection in list(self._open):
            connection.abort()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Stop listening and drop all connections. Raises what a `Serve` has raised, and AssertionError if a
        connection is open all the same."""
        await self._end()
        if self._failure is not None:
            raise self._failure

    async def _end(self) -> None:
        self._closed = True
        for listener in self._listeners:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        await self.drop()
        if self._beginning:
            await asyncio.wait(self._beginning)
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        assert not self._open, f"left open: {self!r}"
        assert not self._tasks, f"still serving: {self!r}"

    # --- what connections tell their owner

    def opened(self, connection: _Connection | _Handshake) -> bool:
        """A transport was made. Returns whether it may be used: after the end it is aborted."""
        self._open.add(connection)
        if self._closed:
            connection.abort()
        return not self._closed

    def lost(self, connection: _Connection | _Handshake) -> None:
        """A transport has ended, or belongs to another connection of these now."""
        self._open.discard(connection)

    def serve(self, serve: Serve, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve an accepted connection."""

        async def one() -> None:
            await serve(reader, writer)
            writer.close()
            await writer.wait_closed()

        # A task that is cancelled before its first step runs no line of `one`.
        self.run(one()).add_done_callback(lambda _: writer.transport.abort())

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task until the end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is not None and not isinstance(failure, _BREAKS_OFF):
            self._failure = self._failure or failure


@asynccontextmanager
async def listening(serve: Serve, port: int = 0, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve connections on loopback while the block runs. Yields the port; 0 asks for a free one."""
    async with Streams() as streams:
        yield await streams.listen(serve, port, tls)


@asynccontextmanager
async def connected(host: str, port: int) -> AsyncIterator[Pair]:
    """One connection while the block runs. Raises OSError."""
    async with Streams() as streams:
        yield await streams.connect(host, port)


async def forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Forward bytes until the source ends. Raises OSError if either side breaks off."""
    while data := await source.read(PIECE_BYTES):
        sink.write(data)
        await sink.drain()


async def until_first_ends(*works: Coroutine[Any, Any, None]) -> None:
    """Run them until one ends, and cancel the others. A connection that breaks off is an end.

    Raises what the first to end raised otherwise.
    """
    tasks = [asyncio.get_running_loop().create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        with suppress(*_BREAKS_OFF):
            task.result()
