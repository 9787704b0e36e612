"""Which requests pass under another server."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.http.asgi.guard import Guard
from app.http.browsers.rules import Browsers


async def asked(server: tuple[str, int | None] | None, *, open_to_all: bool = False) -> tuple[int, Any]:
    """The status of an answer, and its code if it is a problem."""
    sent: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": "/v1/channels",
        "query_string": b"",
        "headers": [(b"host", b"192.0.2.7")],
        "server": server,
    }
    browsers = Browsers((), (), any_host=False)
    await Guard(application, browsers, slow_reader_s=10.0, anywhere=open_to_all)(scope, receive, send)
    return sent[0]["status"], msgspec.json.decode(sent[1]["body"]).get("code")


@pytest.mark.parametrize(
    "server", [("127.0.0.1", 80), ("::1", 80), ("localhost", 80), ("/run/gapless.sock", None), None]
)
async def test_what_no_other_machine_reaches_is_served(server: tuple[str, int | None] | None) -> None:
    assert await asked(server) == (200, None)


@pytest.mark.parametrize("server", [("192.0.2.7", 80), ("2001:db8::7", 80), ("gapless.example.org", 80)])
async def test_what_other_machines_reach_is_closed_without_credentials(server: tuple[str, int]) -> None:
    assert await asked(server) == (403, "forbidden")
    assert await asked(server, open_to_all=True) == (200, None)
