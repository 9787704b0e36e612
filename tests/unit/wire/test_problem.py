"""Problem documents: status, headers and members for every code, and nothing echoed that could harm."""

from __future__ import annotations

import json
import logging

import asyncpg
import httpx
import pytest
from fastapi import FastAPI

from app.http import problem
from db.connect import translate
from subscriptions.domain.errors import Code, FieldError, GaplessError, invalid, unavailable
from tests.patience import http_client


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


def application() -> FastAPI:
    app = FastAPI()
    problem.install(app)

    @app.get("/page")
    async def page() -> None: ...

    @app.get("/crash")
    async def crash() -> None:
        raise RuntimeError("secret dsn")

    return app


async def call(method: str, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(application(), raise_app_exceptions=False)
    async with http_client("http://test", transport=transport) as client:
        return await client.request(method, path)


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "allowed"),
    [
        ("GET", "/nowhere", 404, "not_found", None),
        ("POST", "/page", 405, "method_not_allowed", "GET"),
        ("GET", "/crash", 500, "internal", None),
    ],
)
async def test_pages_refuse_as_routes_do(
    method: str, path: str, status: int, code: str, allowed: str | None
) -> None:
    answer = await call(method, path)
    document = answer.json()
    assert (answer.status_code, document["code"], document["status"]) == (status, code, status)
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers.get("allow") == allowed
    assert "secret" not in answer.text


async def test_a_crash_is_logged_in_full(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "gapless.http"):
        await call("GET", "/crash")
    assert "secret dsn" in caplog.text
