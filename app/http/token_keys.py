"""Keys that sign tokens (JWTs): from a file, and from a URL that publishes them."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import jwt
from cryptography.exceptions import UnsupportedAlgorithm

log = logging.getLogger(__name__)

ALGORITHMS: Final = {
    ("oct", None): "HS256",
    ("RSA", None): "RS256",
    ("EC", "P-256"): "ES256",
    ("OKP", "Ed25519"): "EdDSA",
}
"""The one algorithm of each family of keys, by type and curve."""
MIN_SECRET_BYTES: Final = 32
MIN_RSA_BITS: Final = 2048
MAX_KEYS: Final = 100
MAX_DOCUMENT_BYTES: Final = 1_000_000
FETCH_TIMEOUT_S: Final = 5.0
REFRESH_S: Final = 600.0
"""How often published keys are read again."""
RETRY_S: Final = 5.0
"""How often keys are asked for that were never read."""
PACE_S: Final = 60.0
"""Unknown keys make a process read them at most this often."""


class TokenKeyError(ValueError):
    """Keys that cannot be used. The text says why, and holds nothing of them."""


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key, with the only algorithm that it is good for. `signs`: it can make tokens too."""

    id: str | None
    algorithm: str
    signs: bool
    jwk: dict[str, Any] = field(repr=False)

    @property
    def key(self) -> Any:
        """As the library takes it."""
        return jwt.PyJWK(self.jwk, self.algorithm).key

    @property
    def verifying(self) -> Any:
        """The part that checks signatures."""
        key = self.key
        return key.public_key() if self.signs and self.algorithm != "HS256" else key


def read_keys(text: str | bytes, *, published: bool) -> tuple[TokenKey, ...]:
    """The keys of a JWK set. Of one that is `published`, those that are no signing keys of a known kind are
    left out, secrets too. Raises TokenKeyError."""
    try:
        document = json.loads(text)
        found = document["keys"]
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise TypeError
    except (ValueError, TypeError, KeyError):
        raise TokenKeyError('must be a JWK set: {"keys": [...]}') from None
    if len(found) > MAX_KEYS:
        raise TokenKeyError(f"has more than {MAX_KEYS} keys")
    keys: dict[str | None, TokenKey] = {}
    for number, jwk in enumerate(found):
        try:
            key = _read_key(jwk, published=published)
        except TokenKeyError as error:
            if published:
                log.info("key %d of the published keys is left out: it %s", number, error)
                continue
            raise TokenKeyError(f"keys[{number}] {error}") from None
        if key.id in keys:
            raise TokenKeyError(f"keys[{number}] has the kid of another one")
        keys[key.id] = key
    if None in keys and len(keys) > 1:
        raise TokenKeyError("has several keys, so each needs a kid")
    return tuple(keys.values())


def _read_key(jwk: dict[str, Any], *, published: bool) -> TokenKey:
    kind, curve = jwk.get("kty"), jwk.get("crv")
    algorithm = ALGORITHMS.get((kind, curve)) if isinstance(kind, str) else None
    if algorithm is None or not isinstance(curve, str | None):
        raise TokenKeyError("is of no kind that is known: oct, RSA, EC with P-256, OKP with Ed25519")
    if jwk.get("alg", algorithm) != algorithm:
        raise TokenKeyError(f"has an alg that is not {algorithm}")
    operations = jwk.get("key_ops")
    if jwk.get("use", "sig") != "sig" or (
        isinstance(operations, list) and not {"sign", "verify"} & {str(one) for one in operations}
    ):
        raise TokenKeyError("is not for signatures")
    if published and (kind == "oct" or "d" in jwk):
        raise TokenKeyError("is secret, and must not be published")
    key_id = jwk.get("kid")
    if not isinstance(key_id, str | None) or key_id == "" or len(key_id or "") > 255:
        raise TokenKeyError("has a kid that is no text of 1 to 255 characters")
    found = TokenKey(key_id, algorithm, kind == "oct" or "d" in jwk, dict(jwk))
    try:
        key = found.key
        _ = found.verifying
    except (jwt.PyJWTError, UnsupportedAlgorithm, ValueError, TypeError, KeyError):
        # Some of these tell of the key.
        raise TokenKeyError("cannot be read") from None
    if kind == "oct" and len(key) < MIN_SECRET_BYTES:
        raise TokenKeyError(f"has fewer than {MIN_SECRET_BYTES} bytes")
    if kind == "RSA" and key.key_size < MIN_RSA_BITS:
        raise TokenKeyError(f"has fewer than {MIN_RSA_BITS} bits")
    return found


def load_keys(path: Path) -> tuple[TokenKey, ...]:
    """The keys of a file. Raises TokenKeyError."""
    try:
        keys = read_keys(path.read_bytes(), published=False)
    except OSError as error:
        raise TokenKeyError(f"cannot be read: {error.strerror}") from None
    if not keys:
        raise TokenKeyError("has no keys")
    return keys


async def fetch(url: str) -> bytes:
    """What a URL answers. Raises httpx.HTTPError, TokenKeyError."""
    async with (
        httpx.AsyncClient(timeout=FETCH_TIMEOUT_S, follow_redirects=False, trust_env=False) as client,
        client.stream("GET", url, headers={"accept": "application/json"}) as answer,
    ):
        answer.raise_for_status()
        body = b""
        async for part in answer.aiter_bytes():
            body += part
            if len(body) > MAX_DOCUMENT_BYTES:
                raise TokenKeyError("is too large")
        return body


class TokenKeys:
    """The keys that are good now. While the URL does not answer, the keys that it published stay good."""

    def __init__(
        self,
        own: Iterable[TokenKey] = (),
        url: str | None = None,
        *,
        fetch: Callable[[str], Awaitable[bytes]] = fetch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = tuple(own)
        self._url = url
        self._fetch = fetch
        self._clock = clock
        self._published: tuple[TokenKey, ...] | None = None
        self._keys = {key.id: key for key in self._own}
        self._fetched_at = float("-inf")
        self._fetching: asyncio.Task[None] | None = None
        self.changes = 0
        """How often there were other keys than before."""

    def __repr__(self) -> str:
        return f"TokenKeys({len(self._keys)} keys)"

    def __contains__(self, key: TokenKey) -> bool:
        return self._keys.get(key.id) == key

    @property
    def known(self) -> bool:
        """Whether the published keys were read once."""
        return self._url is None or self._published is not None

    def find(self, key_id: object) -> TokenKey | None:
        """The key of this kid; None as kid is good while there is one key only."""
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id) if isinstance(key_id, str) else None

    async def refresh(self, *, pace_s: float = PACE_S) -> None:
        """Read the published keys again, unless that was done or tried in the last `pace_s` seconds."""
        self.begin_refresh(pace_s=pace_s)
        if self._fetching is not None:
            await asyncio.shield(self._fetching)

    def begin_refresh(self, *, pace_s: float) -> None:
        """As `refresh`, without waiting for the issuer."""
        if self._fetching is None and self._url and self._clock() - self._fetched_at >= pace_s:
            self._fetched_at = self._clock()
            self._fetching = asyncio.create_task(self._read(self._url))
            self._fetching.add_done_callback(self._done)

    def _done(self, _: asyncio.Task[None]) -> None:
        self._fetching = None

    async def _read(self, url: str) -> None:
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                found = read_keys(await self._fetch(url), published=True)
        except (httpx.HTTPError, httpx.InvalidURL, TokenKeyError, TimeoutError) as error:
            why = str(error) or type(error).__name__
            log.warning("the keys of tokens cannot be read, those that are known stay good: %s", why)
            return
        if found != self._published:
            self._published = found
            self.changes += 1
            # A key of the file wins: it is the operator's own word.
            self._keys = {key.id: key for key in (*found, *self._own)}
