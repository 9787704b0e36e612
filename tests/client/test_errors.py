"""Refusals become typed errors by the protocol's codes, and by status where something else answered."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import gapless
import pytest
from gapless._errors import error_from_answer

from tests.client.model import problem

CODES = [
    (422, "invalid_request", gapless.InvalidRequest),
    (400, "invalid_request", gapless.InvalidRequest),
    (400, "malformed_json", gapless.InvalidRequest),
    (406, "not_acceptable", gapless.InvalidRequest),
    (414, "uri_too_long", gapless.InvalidRequest),
    (431, "headers_too_large", gapless.InvalidRequest),
    (401, "unauthenticated", gapless.Unauthenticated),
    (403, "forbidden", gapless.Forbidden),
    (403, "origin_not_allowed", gapless.Forbidden),
    (421, "host_not_allowed", gapless.InvalidRequest),
    (404, "channel_not_found", gapless.NotFound),
    (404, "message_not_found", gapless.NotFound),
    (404, "subscription_not_found", gapless.NotFound),
    (404, "dead_letter_not_found", gapless.NotFound),
    (409, "conflict", gapless.Conflict),
    (409, "head_mismatch", gapless.HeadMismatch),
    (409, "version_mismatch", gapless.VersionMismatch),
    (409, "transaction_conflict", gapless.TransactionConflict),
    (410, "cursor_expired", gapless.CursorExpired),
    (413, "payload_too_large", gapless.PayloadTooLarge),
    (415, "unsupported_media_type", gapless.InvalidRequest),
    (422, "idempotency_mismatch", gapless.IdempotencyMismatch),
    (429, "rate_limited", gapless.RateLimited),
    (503, "unavailable", gapless.Unavailable),
    (500, "internal", gapless.ServerError),
    (507, "storage_full", gapless.ServerError),
    (418, "teapot", gapless.GaplessError),
]


@pytest.mark.parametrize(("status", "code", "kind"), CODES)
def test_every_code_of_the_protocol_has_its_class(
    status: int, code: str, kind: type[gapless.GaplessError]
) -> None:
    errors = [{"field": "key", "message": "too long"}]
    body = json.dumps(problem(status, code, errors=errors)).encode()
    error = error_from_answer(status, {"x-request-id": "r-1"}, body)
    assert type(error) is kind
    assert (error.code, error.status, error.detail) == (code, status, f"{code} it is")
    assert error.errors == tuple(errors)
    assert error.request_id == "r-1"
    assert str(error) == f"{code}: {code} it is (request r-1)"


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (502, gapless.ServerError, True),
        (503, gapless.Unavailable, True),
        (504, gapless.ServerError, True),
        (429, gapless.RateLimited, True),
        (401, gapless.Unauthenticated, False),
        (404, gapless.NotFound, False),
    ],
)
@pytest.mark.parametrize(
    "body", [b"", b"<html>Bad Gateway</html>", b"[1]", b'"x"', b"\xff", b'{"detail": 7}']
)
def test_a_proxys_answer_is_judged_by_its_status(
    status: int, kind: type[gapless.GaplessError], retryable: bool, body: bytes
) -> None:
    error = error_from_answer(status, {}, body)
    assert type(error) is kind
    assert error.code == f"http_{status}"
    assert error.retryable is retryable


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    assert error_from_answer(503, {"retry-after": "3"}, b"").retry_after == 3
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    read = error_from_answer(503, {"retry-after": soon}, b"").retry_after
    assert read is not None
    assert 0 < read <= 100
    past = format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)
    assert error_from_answer(503, {"retry-after": past}, b"").retry_after == 0
    for nonsense in ("soon", "-1", "", "1e3", "²"):
        assert error_from_answer(503, {"retry-after": nonsense}, b"").retry_after is None


def test_errors_travel_between_processes() -> None:
    error = error_from_answer(409, {}, json.dumps(problem(409, "head_mismatch")).encode())
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is gapless.HeadMismatch
    assert (copy.code, copy.status, copy.detail) == (error.code, error.status, error.detail)
    lost = gapless.HistoryLost("gone", gap=gapless.Gap("a", 5, 4))
    assert pickle.loads(pickle.dumps(lost)).gap == lost.gap
    leaseless = gapless.LeaseLost("gone", receipt="r-1")
    assert pickle.loads(pickle.dumps(leaseless)).receipt == "r-1"


def test_all_errors_have_one_base() -> None:
    kinds = [
        kind for kind in vars(gapless).values() if isinstance(kind, type) and issubclass(kind, Exception)
    ]
    assert len(kinds) == 21
    assert all(issubclass(kind, gapless.GaplessError) for kind in kinds)
