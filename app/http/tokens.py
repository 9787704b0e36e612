"""Tokens (JWTs): from a signed text to who asks.

What is checked follows RFC 8725: the algorithm is that of the key and not of the token, a token ends, and it
is for this service where the settings say so.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import jwt
import msgspec

from app.http.bearer import EXPIRED
from app.http.token_keys import REFRESH_S, RETRY_S, TokenKey, TokenKeys
from app.message.grants import GrantDocument, read_grants
from subscriptions.domain.errors import GaplessError, unauthenticated
from subscriptions.domain.names import MAX_NAME_CHARACTERS, is_channel
from subscriptions.domain.principal import Action, Principal

MAX_TOKEN_CHARACTERS: Final = 8192
MAX_KEPT: Final = 50_000
"""Tokens that are not checked again."""
SKEW_S: Final = 60
"""How far the clock of whoever signs may be ahead."""
ALLOWED: Final = frozenset({"HS256", "RS256", "ES256", "EdDSA"})
NOT_BY_TOKEN: Final = frozenset({Action.ADMIN})
"""Keys are an admin's: tokens are made by applications."""
_TYPES: Final = frozenset({"jwt", "at+jwt"})
_decode_grants: Final = msgspec.json.Decoder(list[GrantDocument])


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What a token has to say. `max_lifetime_s`: from its issue, and from now, to its end."""

    namespace: str = "default"
    issuer: str | None = None
    audience: str | None = None
    max_lifetime_s: float = 86_400.0


class Tokens:
    """Checks tokens, each once."""

    def __init__(self, keys: TokenKeys, rules: TokenRules, now_us: Callable[[], int]) -> None:
        self.keys = keys
        self._rules = rules
        self._now_us = now_us
        self._kept: dict[str, tuple[Principal, TokenKey]] = {}
        self._ends: list[tuple[int, int, str]] = []
        self._count = itertools.count()
        self._seen_changes = keys.changes

    def __repr__(self) -> str:
        return f"Tokens({self.keys!r}, {len(self._kept)} kept)"

    def read(self, text: str) -> Principal | None:
        """Who has this token; None: its key is not known here. Raises `unauthenticated`."""
        kept = self._kept.get(text)
        if kept is None:
            kept = self._check(text)
            if kept is None:
                return None
            self._keep(text, *kept)
        principal, _ = kept
        if principal.lifetime.over or (principal.expires_at_us or 0) <= self._now_us():
            principal.lifetime.end()
            raise unauthenticated(EXPIRED)
        return principal

    def follow_keys(self) -> None:
        """Begin to read published keys again when it is time. An issuer that is silent holds up nobody."""
        self.keys.begin_refresh(pace_s=REFRESH_S if self.keys.known else RETRY_S)

    def end_expired(self) -> None:
        """End what tokens opened that have expired, or whose key is gone."""
        now_us = self._now_us()
        while self._ends and self._ends[0][0] <= now_us:
            _, _, text = heapq.heappop(self._ends)
            self._forget(text)
        if self._seen_changes != self.keys.changes:
            self._seen_changes = self.keys.changes
            for text in [text for text, (_, key) in self._kept.items() if key not in self.keys]:
                self._forget(text)

    def _forget(self, text: str) -> None:
        kept = self._kept.pop(text, None)
        if kept is not None:
            kept[0].lifetime.end()

    def _keep(self, text: str, principal: Principal, key: TokenKey) -> None:
        if len(self._kept) >= MAX_KEPT:
            # What nothing depends on is checked again when it comes.
            self._kept = {t: kept for t, kept in self._kept.items() if not kept[0].lifetime.watched_by_nobody}
            self._ends = [end for end in self._ends if end[2] in self._kept]
            heapq.heapify(self._ends)
        self._kept[text] = principal, key
        heapq.heappush(self._ends, (principal.expires_at_us or 0, next(self._count), text))

    def _check(self, text: str) -> tuple[Principal, TokenKey] | None:
        if len(text) > MAX_TOKEN_CHARACTERS:
            raise unauthenticated(f"the token is longer than {MAX_TOKEN_CHARACTERS} characters")
        try:
            header = jwt.get_unverified_header(text)
        except jwt.PyJWTError:
            raise unauthenticated("the token is no JWT") from None
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in ALLOWED:
            raise unauthenticated(f"the token's alg must be one of {', '.join(sorted(ALLOWED))}")
        if "crit" in header or str(header.get("typ", "JWT")).lower() not in _TYPES:
            raise unauthenticated("the token's header has a typ or crit that is not known")
        key = self.keys.find(header.get("kid"))
        if key is None:
            return None
        if algorithm != key.algorithm:
            raise unauthenticated("the token's alg is not that of its key")
        return self._principal(self._claims(text, key)), key

    def _claims(self, text: str, key: TokenKey) -> dict[str, Any]:
        rules = self._rules
        required = ["exp", "sub", *(["iss"] if rules.issuer else []), *(["aud"] if rules.audience else [])]
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                key.verifying,
                algorithms=[key.algorithm],
                issuer=rules.issuer,
                audience=rules.audience,
                leeway=0,
                options={"require": required, "verify_exp": False, "verify_iat": False, "verify_nbf": False},
            )
        except jwt.PyJWTError as error:
            raise unauthenticated(f"the token is not good: {_why(error)}") from None
        except (ValueError, TypeError, OverflowError):
            raise unauthenticated("the token is not good") from None
        self._check_times(claims)
        return claims

    def _check_times(self, claims: dict[str, Any]) -> None:
        """The library takes fractions, texts and infinity for times."""
        now = self._now_us() / 1e6
        for name in ("exp", "iat", "nbf"):
            if name in claims and type(claims[name]) is not int:
                raise unauthenticated(f"the token's {name} must be an integer")
        ends, issued = claims["exp"], claims.get("iat", now)
        if ends <= now:
            raise unauthenticated(EXPIRED)
        if max(issued, claims.get("nbf", now)) > now + SKEW_S:
            raise unauthenticated("the token is not good yet")
        if ends - min(issued, now) > self._rules.max_lifetime_s:
            raise unauthenticated(f"the token lasts longer than {self._rules.max_lifetime_s:.0f} s")

    def _principal(self, claims: dict[str, Any]) -> Principal:
        subject, namespace = claims["sub"], claims.get("ns", self._rules.namespace)
        if not isinstance(subject, str) or not subject.isprintable():
            raise unauthenticated("the token's sub must be text without control characters")
        if not 1 <= len(subject) <= MAX_NAME_CHARACTERS:
            raise unauthenticated(f"the token's sub must have 1 to {MAX_NAME_CHARACTERS} characters")
        if not isinstance(namespace, str) or not is_channel(namespace):
            raise unauthenticated("the token's ns must be the name of a namespace")
        if "grants" not in claims and "channel" in claims:
            # The form of Centrifugo's tokens for subscriptions.
            channel = claims["channel"]
            if not isinstance(channel, str) or not is_channel(channel):
                raise unauthenticated("the token's channel must be the name of a channel")
            claims = claims | {"grants": [{"channels": [channel], "actions": ["subscribe"]}]}
        try:
            grants = read_grants(_decode_grants.decode(msgspec.json.encode(claims.get("grants", []))))
        except msgspec.MsgspecError as error:
            raise unauthenticated(f"the token's grants do not fit: {error}") from None
        except GaplessError as error:
            raise unauthenticated(f"the token's grants do not fit: {error.detail}") from None
        if any(grant.actions & NOT_BY_TOKEN for grant in grants):
            raise unauthenticated("the token's grants do not fit: no token makes an admin")
        return Principal(namespace, subject, grants, expires_at_us=claims["exp"] * 1_000_000)


def _why(error: jwt.PyJWTError) -> str:
    if isinstance(error, jwt.InvalidSignatureError):
        return "its signature does not fit"
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"it has no {error.claim}"
    if isinstance(error, jwt.InvalidAudienceError):
        return "it is for another audience"
    if isinstance(error, jwt.InvalidIssuerError):
        return "it is of another issuer"
    return "it cannot be read"
