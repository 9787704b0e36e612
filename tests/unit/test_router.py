"""Routing by the table of routes: what is found, what is refused, and that nothing of a crash is shown."""

from __future__ import annotations

import inspect
import logging
import typing
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect
from starlette.routing import Mount
from starlette.types import Receive, Scope, Send

from app.api.route import Needs, Returns, Route
from app.api.router import PreflightRoute, Rows, Table
from app.api.table import ROUTES
from app.http.parameters import LogCursor
from app.http.principals import OPEN, Principals
from app.http.request import NO_CONTENT, Answer, Request
from app.process.dependencies import Dependencies
from subscriptions.domain.errors import Code, GaplessError
from tests.patience import http_client

DONE = {200: Returns("Done.")}


class Listed(msgspec.Struct):
    limit: int = 10
    only: list[str] = []
    after: LogCursor | msgspec.UnsetType = msgspec.UNSET


async def told(request: Request[Any]) -> Answer:
    """Say what was understood."""
    return Answer(msgspec.json.encode([request.namespace, request.name, request.number, request.query]))


async def part(request: Request[Any], parts: list[str]) -> Answer:
    """Say what was given."""
    return Answer(msgspec.json.encode(parts))


async def gone(request: Request[Any]) -> Answer:
    """Say nothing."""
    return NO_CONTENT


async def refused(request: Request[Any]) -> Answer:
    """Say no."""
    raise GaplessError(Code.CHANNEL_NOT_FOUND, "no channel x")


async def crashed(request: Request[Any]) -> Answer:
    """Fail."""
    raise RuntimeError("secret dsn")


async def left(request: Request[Any]) -> Answer:
    """Find nobody there."""
    raise ClientDisconnect


async def pages(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"a page"})


ROWS = (
    Route("GET", "/things", told, Needs(), DONE, query=Listed),
    Route("GET", "/things/{name}", told, Needs(), DONE),
    Route("DELETE", "/things/{name}", gone, Needs(), DONE),
    Route("POST", "/things/all", gone, Needs(), DONE),
    Route("POST", "/things/{name}/parts/{message_id}", told, Needs(), DONE),
    Route("GET", "/part", part, Needs(), DONE),
    Route("GET", "/refused", refused, Needs(), DONE),
    Route("GET", "/crashed", crashed, Needs(), DONE),
    Route("GET", "/left", left, Needs(), DONE),
)


async def call(method: str, target: str) -> httpx.Response:
    rows = Rows(ROWS, Principals("tenant", lambda: 0, OPEN))
    rows.bind(SimpleNamespace(parts=["a part"], unused=1))
    app = Starlette(routes=[PreflightRoute(), *rows.paths(), Mount("/", pages)])
    async with http_client("http://test", transport=httpx.ASGITransport(app)) as client:
        return await client.request(method, target)


@pytest.mark.parametrize(
    ("method", "target", "understood"),
    [
        ("GET", "/things", ["tenant", "", 0, {"limit": 10, "only": []}]),
        ("GET", "/things?limit=5&only=a&only=b", ["tenant", "", 0, {"limit": 5, "only": ["a", "b"]}]),
        ("GET", "/things/a.b", ["tenant", "a.b", 0, None]),
        ("POST", "/things/a/parts/7", ["tenant", "a", 7, None]),
    ],
)
async def test_a_handler_gets_namespace_path_and_query(method: str, target: str, understood: Any) -> None:
    answer = await call(method, target)
    assert (answer.status_code, answer.json()) == (200, understood)
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]


async def test_a_handler_gets_the_dependencies_that_its_parameters_name() -> None:
    assert (await call("GET", "/part")).json() == ["a part"]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_handler_asks_for_dependencies_of_their_types(route: Route) -> None:
    asked = typing.get_type_hints(route.handler)
    del asked["request"], asked["return"]
    assert asked.items() <= typing.get_type_hints(Dependencies).items()


def test_every_dependency_is_asked_for() -> None:
    asked = {name for route in ROUTES for name in inspect.signature(route.handler).parameters}
    assert asked == {"request", *(field.name for field in fields(Dependencies))}


async def test_an_answer_without_content_has_no_length() -> None:
    answer = await call("DELETE", "/things/a")
    assert (answer.status_code, answer.content) == (204, b"")
    assert not {"content-length", "content-type"} & set(answer.headers)


@pytest.mark.parametrize(
    ("method", "target", "status", "code", "field"),
    [
        ("GET", "/things?x=1", 422, "invalid_request", "x"),
        ("GET", "/things?limit=1&limit=2", 422, "invalid_request", "limit"),
        ("GET", "/things?after=1&after=1", 400, "invalid_request", "after"),
        ("GET", "/things?limit=1_0", 422, "invalid_request", "limit"),
        ("GET", "/things?limit=1e1", 422, "invalid_request", "limit"),
        ("GET", "/things?only=%FF", 400, "invalid_request", None),
        ("DELETE", "/things/a?x", 422, "invalid_request", "x"),
        ("GET", "/things/a..b", 422, "invalid_request", "name"),
        ("POST", "/things/a/parts/x", 422, "invalid_request", "message_id"),
        ("POST", f"/things/a/parts/{2**53}", 422, "invalid_request", "message_id"),
        ("GET", "/refused", 404, "channel_not_found", None),
        ("GET", "/crashed", 500, "internal", None),
    ],
)
async def test_refusals_are_problem_documents(
    method: str, target: str, status: int, code: str, field: str | None
) -> None:
    answer = await call(method, target)
    document = answer.json()
    assert (answer.status_code, document["code"], document["status"]) == (status, code, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert [e["field"] for e in document.get("errors", [])] == ([field] if field else [])
    assert "secret" not in answer.text
    assert "allow" not in answer.headers


@pytest.mark.parametrize(
    ("method", "target", "allowed"),
    [
        ("PUT", "/things", "GET"),
        ("PATCH", "/things/a", "DELETE, GET"),
        ("GET", "/things/all", "POST"),
        ("OPTIONS", "/things/a", "DELETE, GET"),
    ],
)
async def test_another_method_is_told_all_of_the_path(method: str, target: str, allowed: str) -> None:
    answer = await call(method, target)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)
    assert answer.json()["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    "path", ["/", "/thing", "/things/", "/things//parts/7", "/things/a/b", "/things/a/parts"]
)
async def test_what_no_row_has_is_handed_on(path: str) -> None:
    assert (await call("GET", path)).status_code == 299


async def test_before_the_service_runs_it_is_unavailable() -> None:
    app = Starlette(routes=[*Rows(ROWS, Principals("tenant", lambda: 0, OPEN)).paths()])
    async with http_client("http://test", transport=httpx.ASGITransport(app)) as client:
        answer = await client.get("/things")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")


async def test_a_crash_is_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "gapless.http"):
        await call("GET", "/crashed")
    assert "secret dsn" in caplog.text


async def test_a_client_that_leaves_is_no_crash(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "gapless.http"), pytest.raises(AssertionError):
        # There is no answer, which the transport of this test does not take.
        await call("GET", "/left")
    assert not [record for record in caplog.records if record.name == "gapless.http"]


def test_no_two_rows_answer_the_same_request() -> None:
    with pytest.raises(AssertionError):
        Table([*ROWS, Route("GET", "/things/{name}", gone, Needs(), DONE)])


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_a_handler_takes_the_parameters_of_its_row(route: Route) -> None:
    taken = typing.get_type_hints(route.handler)["request"]
    assert typing.get_args(taken) == (route.query or type(None),)
