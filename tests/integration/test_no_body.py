"""Requests without a body and without a media type, to every route that takes a body."""

from __future__ import annotations

import httpx
import pytest

from app.api.route import Route
from app.api.table import ROUTES
from tests.patience import http_client

BODIES = [route for route in ROUTES if route.body is not None and not route.needs.operator]


def target(route: Route) -> str:
    return route.path.format(channel="no.body", name="no.body", namespace="no.body", marker="read")


async def ask(client: httpx.AsyncClient, route: Route, **more: object) -> httpx.Response:
    return await client.request(route.method, target(route), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("route", BODIES, ids=lambda route: f"{route.method} {route.path}")
async def test_nothing_is_an_empty_object_or_refused(server_url: str, route: Route) -> None:
    assert route.body is not None
    async with http_client(server_url) as client:
        await client.post("/v1/channels/no.body/messages", json={"data": 1})
        await client.put("/v1/subscriptions/no.body", json={"channels": ["no.body"]})
        nothing = await ask(client, route)
        assert nothing.status_code in ((422,) if route.body.required else (200, 201)), nothing.text
        if route.path == "/v1/dead-letters/replay":
            assert nothing.json()["errors"][0]["field"] == "body"
        elif route.body.required:
            empty = await ask(client, route, json={})
            assert empty.json()["errors"] == nothing.json()["errors"]
        untyped = await ask(client, route, content=b"{}")
        assert (untyped.status_code, untyped.json()["code"]) == (415, "unsupported_media_type")
        assert "CloudEvent" not in untyped.json()["detail"]
