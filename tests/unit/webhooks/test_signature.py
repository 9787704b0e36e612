"""What we sign is what the standard's own library verifies."""

from __future__ import annotations

import base64
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from app.faces.webhooks.signature import check_secret, signed
from subscriptions.domain.errors import Code, GaplessError

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
BODY = '{"id": 7, "data": "ü"}'.encode()


def verify(headers: dict[str, str], body: bytes = BODY, secret: str = SECRET) -> None:
    Webhook(secret).verify(body, headers)


def ours(timestamp_s: int | None = None) -> dict[str, str]:
    return signed(SECRET, "msg_7_orders", int(time.time()) if timestamp_s is None else timestamp_s, BODY)


def test_the_example_of_the_specification() -> None:
    headers = signed(
        "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD",
        "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk",
        1649367553,
        b'{"email":"test@example.com","username":"test_user"}',
    )
    assert headers["webhook-signature"] == "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw="


@given(st.binary(min_size=24, max_size=64), st.text(st.characters(codec="utf-8")))
def test_the_library_accepts_every_key_and_body(key: bytes, text: str) -> None:
    secret = "whsec_" + base64.b64encode(key).decode()
    headers = signed(secret, "msg_1_s", int(time.time()), text.encode())
    Webhook(secret).verify(text.encode(), headers, json_parse=False)
    assert check_secret(secret) == key


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook-id": "msg_8_orders"},
        {"webhook-timestamp": str(int(time.time()) + 100)},
        {"webhook-signature": "v1," + base64.b64encode(bytes(32)).decode()},
    ],
)
def test_the_library_refuses_a_changed_header(changed: dict[str, str]) -> None:
    verify(ours())
    with pytest.raises(WebhookVerificationError):
        verify(ours() | changed)


def test_the_library_refuses_a_changed_body_an_old_time_and_another_secret() -> None:
    with pytest.raises(WebhookVerificationError):
        verify(ours(), BODY + b" ")
    with pytest.raises(WebhookVerificationError):
        verify(ours(int(time.time()) - 3600))
    with pytest.raises(WebhookVerificationError):
        verify(ours(), secret="whsec_" + base64.b64encode(bytes(32)).decode())


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        "hunter2",
        base64.b64encode(bytes(32)).decode(),
        "WHSEC_" + base64.b64encode(bytes(32)).decode(),
        "whsec_whsec_" + base64.b64encode(bytes(32)).decode(),
        "whsec_" + base64.b64encode(bytes(23)).decode(),
        "whsec_" + base64.b64encode(bytes(65)).decode(),
        "whsec_" + base64.b64encode(bytes(32)).decode().rstrip("="),
        "whsec_" + base64.b64encode(bytes(32)).decode() + "\n",
        "whsec_" + base64.urlsafe_b64encode(b"\xff" * 32).decode(),
        "whsec_ü" + base64.b64encode(bytes(32)).decode(),
        "whsec_" + "A" * 100_000,
    ],
)
def test_what_is_no_secret_is_refused_without_repeating_it(secret: str) -> None:
    with pytest.raises(GaplessError, match=r"push\.secret") as refused:
        check_secret(secret)
    assert refused.value.code is Code.INVALID_REQUEST
    assert secret.removeprefix("whsec_") not in refused.value.detail or secret in ("", "whsec_")
