"""One worker process: an event loop, a uvicorn server on the supervisor's socket, the service."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
from contextlib import suppress
from types import FrameType

import uvicorn

from app.http.browsers.rules import EVERY_ANSWER, Browsers
from app.http.protocol import GOODBYE_S, GaplessHttpProtocol
from app.process.application import GaplessApp
from app.process.logs import configure_logging
from app.process.settings import Settings

GRACE_S = 8
DRAIN_S = 0.5
READY_PATIENCE_S = 30.0
UNSENT_BYTES = 256 * 1024
OTHER_FILES = 256
"""File descriptors that are not clients' connections: databases, webhooks, logs."""


class Server(uvicorn.Server):
    """A uvicorn server that tells the supervisor when it is ready, and its streams when it stops."""

    def __init__(self, config: uvicorn.Config, application: GaplessApp, ready_fd: int | None) -> None:
        super().__init__(config)
        self._application = application
        self._ready_fd = ready_fd
        self._announcing: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._ready_fd is not None:
            self._announcing = asyncio.create_task(self._announce(self._ready_fd))

    async def _announce(self, ready_fd: int) -> None:
        """Tells the supervisor once definitions are loaded. If the database stays away, a restart would not
        help: requests that do not need it are answered, and /readyz tells the state."""
        service = self._application.service
        assert service is not None, "the application has started up"
        with suppress(TimeoutError):
            async with asyncio.timeout(READY_PATIENCE_S):
                await service.opened()
        with suppress(OSError):
            os.write(ready_fd, b"1")
        os.close(ready_fd)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accepts no more connections, serves requests on the open ones for a moment, then closes them.

        A connection that was accepted just now must not be reset, and a client that keeps its connection is
        told to open another one.
        """
        for server in self.servers:
            server.close()
        self.server_state.default_headers.append((b"connection", b"close"))
        await asyncio.sleep(DRAIN_S)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by the signal between any two lines of the loop's own work, so it only leaves word there."""
        super().handle_exit(sig, frame)
        if self._application.service is not None:
            asyncio.get_running_loop().call_soon_threadsafe(self._application.service.dismiss)


def _settle_garbage_collection() -> None:
    """Excludes the objects loaded so far from garbage collection, and makes collections rarer. Requests make
    many small objects that reference counts free soon, so a collection every few hundred finds nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def _protocol(settings: Settings, rules: Browsers) -> type[GaplessHttpProtocol]:
    """The HTTP protocol with the limits and the rules for browsers. Some file descriptors are reserved."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    class Bounded(GaplessHttpProtocol):
        __slots__ = ()
        max_connections = min(settings.max_connections, max(16, files - OTHER_FILES))
        buffer_bytes = settings.buffer_bytes
        slow_reader_s = settings.slow_reader_timeout
        browsers = rules

    return Bounded


def _bound(listening: socket.socket, slow_reader_s: float) -> None:
    """Sets socket options for each connection; accepted sockets inherit them.

    The kernel ends a connection whose peer confirms nothing for this long, and tells the client nothing. It
    does so later than this process, which sends a goodbye first. The kernel buffers little more than it can
    send, so that unread bytes wait in this process, which counts them.
    """
    if option := getattr(socket, "TCP_NOTSENT_LOWAT", None):
        listening.setsockopt(socket.IPPROTO_TCP, option, UNSENT_BYTES)
    if option := getattr(socket, "TCP_USER_TIMEOUT", None):
        patience_s = slow_reader_s + GOODBYE_S + 1
        listening.setsockopt(socket.IPPROTO_TCP, option, int(patience_s * 1000))


def serve(
    application: GaplessApp,
    settings: Settings,
    listening: socket.socket,
    ready_fd: int | None = None,
) -> None:
    """Serve until SIGTERM. `ready_fd` gets a byte once definitions are loaded."""
    _bound(listening, settings.slow_reader_timeout)
    config = uvicorn.Config(
        application,
        http=_protocol(settings, application.browsers),
        headers=list(EVERY_ANSWER),
        ws="none",
        loop="uvloop",
        lifespan="on",
        access_log=False,
        log_config=None,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        root_path=settings.root_path,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=GRACE_S,
        backlog=4096,
    )
    _settle_garbage_collection()
    Server(config, application, ready_fd).run(sockets=[listening])


def main() -> None:
    """Serve until SIGTERM. The supervisor sets the environment; see `SupervisorConfig`."""
    settings = Settings()
    configure_logging(settings.log_level)
    listening = socket.socket(fileno=int(os.environ["GAPLESS_LISTEN_FD"]))
    ready = os.environ.get("GAPLESS_READY_FD")
    serve(GaplessApp(settings), settings, listening, None if ready is None else int(ready))


if __name__ == "__main__":
    main()
