"""Secrets of webhooks at rest."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from app.faces.webhooks.secrets import (
    UnavailableSecretError,
    WebhookKeyError,
    WebhookSecrets,
    webhook_secrets,
)

SECRET = "whsec_" + b64encode(b"s" * 32).decode()
A, B = b"a" * 32, b"b" * 64


def test_what_was_encrypted_comes_back() -> None:
    stored = WebhookSecrets(A).encrypt(SECRET)
    assert SECRET[6:] not in stored
    assert WebhookSecrets(A).decrypt(stored) == WebhookSecrets(B, A).decrypt(stored) == SECRET


def test_an_equal_secret_is_stored_alike() -> None:
    """So an equal definition is equal, and its tag stays."""
    assert WebhookSecrets(A).encrypt(SECRET) == WebhookSecrets(A, B).encrypt(SECRET)
    assert WebhookSecrets(A).encrypt(SECRET) != WebhookSecrets(B).encrypt(SECRET)


def test_without_keys_it_is_stored_as_it_is_and_with_keys_such_a_one_is_read() -> None:
    assert WebhookSecrets().encrypt(SECRET) == SECRET
    assert WebhookSecrets().is_current(SECRET)
    assert WebhookSecrets(A).decrypt(SECRET) == SECRET
    assert not WebhookSecrets(A).is_current(SECRET)


def test_the_first_key_encrypts() -> None:
    stored = WebhookSecrets(A).encrypt(SECRET)
    assert WebhookSecrets(A, B).is_current(stored)
    assert not WebhookSecrets(B, A).is_current(stored)


def test_without_its_key_or_changed_it_cannot_be_read() -> None:
    stored = WebhookSecrets(A).encrypt(SECRET)
    for secrets in (WebhookSecrets(), WebhookSecrets(B)):
        with pytest.raises(UnavailableSecretError, match="which is not here"):
            secrets.decrypt(stored)
    spoilt = stored[:-6] + ("A" if stored[-6] != "A" else "B") + stored[-5:]
    for text in (spoilt, stored[:-4], stored.rpartition(":")[0] + ":"):
        with pytest.raises(UnavailableSecretError, match="was changed"):
            WebhookSecrets(A).decrypt(text)


def test_keys_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"# the newest first\n%b\n\n%b\n" % (b64encode(B), b64encode(A)))
    assert webhook_secrets(file).decrypt(WebhookSecrets(A).encrypt(SECRET)) == SECRET
    assert webhook_secrets(file).encrypt(SECRET) == WebhookSecrets(B).encrypt(SECRET)
    assert webhook_secrets(None).encrypt(SECRET) == SECRET


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "has no keys"),
        (b"# none\n", "has no keys"),
        (b64encode(b"short"), "each line must be"),
        (b"\xff\xfe", "each line must be"),
        (b64encode(A) + b" " + b64encode(A), "each line must be"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: bytes, why: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(text)
    with pytest.raises(WebhookKeyError, match=why):
        webhook_secrets(file)
    with pytest.raises(WebhookKeyError, match="cannot be read"):
        webhook_secrets(tmp_path / "none")


def test_no_key_is_in_any_representation() -> None:
    assert "aaa" not in repr(WebhookSecrets(A))
