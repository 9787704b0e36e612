"""How the secrets of webhooks are stored: encrypted, where the service has keys for that.

The keys are outside the database, so a dump of it, or a standby, tells nobody the secrets. The cipher is
AES-SIV ([RFC 5297](https://www.rfc-editor.org/rfc/rfc5297)): a text is encrypted to the same text each time,
so equal definitions stay equal, and there is no number that must not be used twice.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any, Final

KEY_BYTES: Final = (32, 48, 64)
MAX_KEYS_BYTES: Final = 100_000
_PREFIX: Final = "encrypted:"
_PURPOSE: Final = b"gapless webhook secret"
_RULE: Final = "each line must be the base64 of 32, 48 or 64 random bytes"


class WebhookKeyError(ValueError):
    """Keys that cannot be used. The text says why, and holds nothing of them."""


class UnavailableSecretError(Exception):
    """A secret was encrypted with a key that is not here."""


class WebhookSecrets:
    """Encrypts and decrypts secrets. The first of the keys encrypts, each decrypts; without keys, secrets are
    stored as they are. Raises WebhookKeyError."""

    def __init__(self, *keys: bytes) -> None:
        if any(len(key) not in KEY_BYTES for key in keys):
            raise WebhookKeyError(_RULE)
        self._ciphers: dict[str, Any] = {_name(key): _cipher(key) for key in keys}

    def __repr__(self) -> str:
        return f"WebhookSecrets({list(self._ciphers)})"

    def encrypt(self, secret: str) -> str:
        """The secret as it is stored."""
        for name, cipher in self._ciphers.items():
            text: bytes = cipher.encrypt(secret.encode(), [_PURPOSE])
            return f"{_PREFIX}{name}:{base64.urlsafe_b64encode(text).decode()}"
        return secret

    def decrypt(self, stored: str) -> str:
        """The secret that was stored so. Raises UnavailableSecretError."""
        if not stored.startswith(_PREFIX):
            return stored
        name, _, text = stored.removeprefix(_PREFIX).partition(":")
        cipher = self._ciphers.get(name)
        if cipher is None:
            raise UnavailableSecretError(f"its secret was encrypted with the key {name}, which is not here")
        from cryptography.exceptions import InvalidTag

        try:
            secret: bytes = cipher.decrypt(base64.urlsafe_b64decode(text), [_PURPOSE])
        except (InvalidTag, ValueError):
            raise UnavailableSecretError("its secret was changed in the database") from None
        return secret.decode()

    def is_current(self, stored: str) -> bool:
        """Whether it is stored as `encrypt` stores it now."""
        return stored.startswith(f"{_PREFIX}{next(iter(self._ciphers), '')}:") or not self._ciphers


def webhook_secrets(path: Path | None) -> WebhookSecrets:
    """With the keys of a file: base64, each on a line; empty lines, and those that begin with #, are passed
    over. Raises WebhookKeyError."""
    if path is None:
        return WebhookSecrets()
    try:
        with path.open("rb") as file:
            text = file.read(MAX_KEYS_BYTES)
    except OSError as error:
        raise WebhookKeyError(f"cannot be read: {error.strerror}") from None
    lines = [line.strip() for line in text.splitlines()]
    try:
        keys = [base64.b64decode(line, validate=True) for line in lines if line and line[:1] != b"#"]
    except ValueError:
        raise WebhookKeyError(_RULE) from None
    if not keys:
        raise WebhookKeyError("has no keys")
    return WebhookSecrets(*keys)


def _name(key: bytes) -> str:
    """Tells which key encrypted a text, and nothing of the key."""
    return hashlib.sha256(b"gapless webhook key " + key).hexdigest()[:8]


def _cipher(key: bytes) -> Any:
    # Only who has keys waits for this import.
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

    return AESSIV(key)
