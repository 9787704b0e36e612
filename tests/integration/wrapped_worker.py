"""A worker whose application is used in another way than by `gapless serve`: PORT, then WAY.

`alone`: as it is. `middleware`: somebody added middleware to it, which counts what passes. `prefix`: a proxy
took `/events` off each path.
"""

from __future__ import annotations

import socket
import sys

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.main import GaplessApp
from app.settings import Settings
from app.telemetry import configure_logging
from app.worker import serve

WAYS = ("alone", "middleware", "prefix")


class Counting:
    """Adds the number of requests so far to each answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._requests += 1

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-requests", b"%d" % self._requests)]
            await send(message)

        await self._app(scope, receive, counted)


def main() -> None:
    """Serve until SIGTERM."""
    port, way = int(sys.argv[1]), sys.argv[2]
    settings = Settings()
    configure_logging(settings.log_level)
    application = GaplessApp(settings)
    if way == "middleware":
        application.add_middleware(Counting)
    listening = socket.create_server(("127.0.0.1", port))
    serve(application, settings, listening, root_path="/events" if way == "prefix" else "")


if __name__ == "__main__":
    main()
