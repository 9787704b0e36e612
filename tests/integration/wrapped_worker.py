"""A worker whose application is used in another way than by `gapless serve`: PORT, then WAY.

`alone`: as it is. `middleware`: somebody added middleware to it, which counts what passes. `function`: they
added a function, which is FastAPI's usual form. `prefix`: a proxy took `/events` off each path. Ways that
begin with `uvicorn` are under uvicorn as it comes.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterable, AsyncIterator

import uvicorn
from starlette.middleware.base import RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.process.application import GaplessApp
from app.process.logs import configure_logging
from app.process.settings import Settings
from app.process.worker import serve

PAUSE_S = 0.05
Part = str | bytes | memoryview
WAYS = ("alone", "middleware", "function", "prefix", "uvicorn", "uvicorn-prefix", "uvicorn-middleware")
PREFIX = "/events"


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


async def named(request: Request, call_next: RequestResponseEndpoint) -> Response:
    """Names the path of the request in its answer, and lets events pass a little later."""
    response = await call_next(request)
    response.headers["x-requests"] = request.url.path
    if "text/event-stream" in response.headers.get("content-type", ""):
        body: AsyncIterable[Part] = getattr(response, "body_iterator")  # noqa: B009 — `call_next` gives one
        setattr(response, "body_iterator", later(body))  # noqa: B010
    return response


async def later(body: AsyncIterable[Part]) -> AsyncIterator[Part]:
    """Each part after a pause, in which the service may write something else."""
    async for part in body:
        await asyncio.sleep(PAUSE_S)
        yield part


def main() -> None:
    """Serve until SIGTERM."""
    port, way = int(sys.argv[1]), sys.argv[2]
    root_path = PREFIX if way.endswith("prefix") else ""
    stock = way.startswith("uvicorn")
    settings = Settings(root_path="" if stock else root_path)
    configure_logging(settings.log_level)
    application = GaplessApp(settings, stands_alone=stock)
    if way.endswith("middleware"):
        application.add_middleware(Counting)
    if way == "function":
        application.middleware("http")(named)
    if stock:
        uvicorn.run(application, port=port, root_path=root_path)
    else:
        serve(application, settings, socket.create_server(("127.0.0.1", port)))


if __name__ == "__main__":
    main()
