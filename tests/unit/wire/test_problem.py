"""Problem documents: status, headers and members for every code, and nothing echoed that could harm."""

from __future__ import annotations

import json
import logging

import asyncpg
import httpx
import pytest
from fastapi import APIRouter, FastAPI, Query
from pydantic import BaseModel
from starlette.requests import ClientDisconnect

from app import problem
from db.connect import translate
from subscriptions.domain.errors import Code, FieldError, GaplessError, invalid, unavailable


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_a_status_and_a_document(code: Code) -> None:
    status, headers, body = problem.render(GaplessError(code, "no"))
    document = json.loads(body)
    assert 400 <= status < 600
    assert document == {
        "type": f"urn:gapless:problem:{code.value}",
        "title": document["title"],
        "status": status,
        "detail": "no",
        "code": code.value,
        "retryable": code.value in {"rate_limited", "unavailable", "storage_full", "request_timeout"},
    }
    assert ("retry-after" in {k.decode() for k, _ in headers}) is (status in (429, 503, 507))
    assert ((b"www-authenticate", b"Bearer") in headers) is (status == 401)


def test_own_status_retry_and_field_errors() -> None:
    assert problem.render(GaplessError(Code.INVALID_REQUEST, "x", status=400))[0] == 400
    assert (b"retry-after", b"7") in problem.render(GaplessError(Code.RATE_LIMITED, "x", retry_after=7))[1]
    assert (b"retry-after", b"1") in problem.render(unavailable())[1]
    document = json.loads(problem.render(invalid("messages[3].type", "is empty"))[2])
    assert document["errors"] == [{"field": "messages[3].type", "message": "is empty"}]


def test_no_more_is_promised_than_is_known() -> None:
    """A statement whose answer was lost may have been committed; one the database refused was not."""
    lost = (TimeoutError(), ConnectionResetError(), asyncpg.InterfaceError("connection is closed"))
    for error in lost:
        assert translate(error).code is Code.UNAVAILABLE
        assert "nothing was stored" not in translate(error).detail
    assert "nothing was stored" in translate(asyncpg.LockNotAvailableError()).detail


def test_control_characters_are_spelled_out() -> None:
    error = GaplessError(
        Code.INVALID_REQUEST,
        "a\r\nb\x1b[31m\x00\ud800\u202e" + "x" * 9999,
        errors=(FieldError("\x07", "\x9b"),),
    )
    document = json.loads(problem.render(error)[2])
    assert document["detail"].startswith("a\\u000d\\u000ab\\u001b[31m\\u0000\\ud800\\u202exxx")
    assert len(document["detail"]) < 1100
    assert document["errors"] == [{"field": "\\u0007", "message": "\\u009b"}]


class Body(BaseModel):
    items: list[int]


def application() -> FastAPI:
    app = FastAPI()
    problem.install(app)

    @app.post("/body")
    async def body(body: Body, limit: int = Query(default=1, ge=1)) -> None: ...

    @app.get("/refused")
    async def refused() -> None:
        raise GaplessError(Code.CHANNEL_NOT_FOUND, "no channel x")

    @app.get("/left")
    async def left() -> None:
        raise ClientDisconnect

    several = APIRouter()

    @several.put("/several/{name}")
    async def put(name: str) -> None: ...

    @several.delete("/several/{name}")
    async def delete(name: str) -> None: ...

    app.include_router(several)

    @app.get("/crash")
    async def crash() -> None:
        raise RuntimeError("secret dsn")

    return app


async def call(method: str, path: str, content: bytes = b"") -> httpx.Response:
    transport = httpx.ASGITransport(application(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(
            method, path, content=content, headers={"content-type": "application/json"}
        )


@pytest.mark.parametrize(
    ("method", "path", "content", "status", "code", "field"),
    [
        ("POST", "/body", b'{"items":[1,"x"]}', 422, "invalid_request", "items[1]"),
        ("POST", "/body?limit=0", b'{"items":[]}', 422, "invalid_request", "limit"),
        ("POST", "/body", b"", 422, "invalid_request", "body"),
        ("POST", "/body", b'{"items":', 400, "malformed_json", None),
        ("POST", "/body", b'"\xff"', 400, "malformed_json", None),
        ("POST", "/body", b"[" * 100_000, 400, "malformed_json", None),
        ("GET", "/refused", b"", 404, "channel_not_found", None),
        ("GET", "/nowhere", b"", 404, "not_found", None),
        ("GET", "/body", b"", 405, "method_not_allowed", None),
        ("GET", "/crash", b"", 500, "internal", None),
    ],
)
async def test_handlers(
    method: str, path: str, content: bytes, status: int, code: str, field: str | None
) -> None:
    answer = await call(method, path, content)
    document = answer.json()
    assert (answer.status_code, document["code"], document["status"]) == (status, code, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert [e["field"] for e in document.get("errors", [])] == ([field] if field else [])
    assert "secret" not in answer.text
    if status == 405:
        assert answer.headers["allow"] == "POST"


async def test_all_methods_of_a_path_are_named() -> None:
    answer = await call("POST", "/several/x")
    assert (answer.status_code, answer.headers["allow"]) == (405, "DELETE, PUT")


async def test_a_crash_is_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "gapless.http"):
        await call("GET", "/crash")
    assert "secret dsn" in caplog.text


async def test_a_client_that_leaves_is_no_crash(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "gapless.http"):
        await call("GET", "/left")
    assert not [record for record in caplog.records if record.name == "gapless.http"]
