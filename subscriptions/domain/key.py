"""API keys: what is kept of them, and how they are written."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import Final

from subscriptions.domain.principal import Grant, Principal

SECRET_BYTES: Final = 32
_KEY: Final = re.compile(r"gapless_([a-z0-9]{12})_([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Key:
    """A key without its secret. Times in microseconds since 1970. `grants` None: everything in the
    namespace."""

    id: str
    namespace: str
    name: str
    digest: bytes = field(repr=False)
    grants: tuple[Grant, ...] | None
    operator: bool
    created_at_us: int
    expires_at_us: int | None

    def principal(self) -> Principal:
        """Who asks with it."""
        return Principal(self.namespace, self.name, self.grants, self.operator, self.expires_at_us, self.id)


def written(id_: str, secret: bytes) -> str:
    """The key as its holder sends it."""
    return f"gapless_{id_}_{secret.hex()}"


def digest_of(secret: bytes) -> bytes:
    """What is stored of a secret: it is random, so a plain hash tells nothing of it."""
    return hashlib.sha256(secret).digest()


def read_key(text: str) -> tuple[str, bytes] | None:
    """The id and the secret of a key as it is sent; None: it is none."""
    found = _KEY.fullmatch(text)
    return None if found is None else (found[1], bytes.fromhex(found[2]))
