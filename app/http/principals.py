"""From the credential of a request to who asks."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from typing import Final

from starlette.types import Scope

from app.http.local import is_local
from subscriptions.domain.errors import Code, GaplessError, unauthenticated, unavailable
from subscriptions.domain.key import Key, digest_of, read_key
from subscriptions.domain.principal import Principal
from subscriptions.engine.single_flight import SingleFlight
from subscriptions.ports import Credentials, KeyPort

log = logging.getLogger(__name__)

FOLLOW_S: Final = 1.0
"""How soon a process knows of a key that was revoked."""
PACE_S: Final = 0.1
"""Unknown keys make a process look for new ones at most this often."""
NO_KEYS: Final = "no keys were made here, so nothing can check this one: leave out the header Authorization"
TOO_OPEN: Final = (
    "this address can be reached from other machines and there are no credentials: make one with gapless keys"
    " create, listen on 127.0.0.1, or set GAPLESS_ALLOW_ANONYMOUS=1 if a proxy or the network keeps others"
    " out"
)
OPEN: Final = Credentials(required=False, version=0, keys=())
"""An installation in which no key was made."""


class Principals:
    """Says who asks. Until it has learned the keys, nobody is known: requests wait for them.

    While no credentials are required, everybody on this machine may do everything in one namespace; with
    `anywhere`, so may those that come over an address that other machines can reach. Each credential is
    refused then, since nothing can check it.
    """

    def __init__(
        self,
        namespace: str,
        now_us: Callable[[], int],
        found: Credentials | None = None,
        *,
        anywhere: bool = False,
    ) -> None:
        self._namespace = namespace
        self._anywhere = anywhere
        self._now_us = now_us
        self._anonymous = Principal(namespace)
        self._stranger = Principal(namespace, grants=())
        self._known: Credentials | None = None
        self._keys: dict[str, tuple[Key, Principal]] = {}
        self._port: KeyPort | None = None
        self._look = SingleFlight(self._read)
        self._look_for_unknown = SingleFlight(self._look)
        self._look_for_unknown.pace_s = PACE_S
        if found is not None:
            self.learn(found)

    def __repr__(self) -> str:
        return f"Principals({len(self._keys)} keys)"

    @property
    def required(self) -> bool:
        """Whether every request needs a credential; also while that is not known."""
        return self._known is None or self._known.required

    @property
    def known_required(self) -> bool:
        """Whether this process has learned that every request needs a credential."""
        return self._known is not None and self._known.required

    def of(self, scope: Scope, *, needed: bool = True) -> Principal | None:
        """Who sends this request. None: that is not known here yet; `find` looks for it. A credential that is
        not `needed` may be left out. Raises `unauthenticated`, `forbidden`."""
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        if not needed and not sent and self.required:
            return self._stranger
        if self._known is None:
            return None
        if not sent:
            if self._known.required:
                raise unauthenticated("this needs a credential: send Authorization: Bearer with a key")
            if needed and not self._anywhere and not is_local(scope):
                raise GaplessError(Code.FORBIDDEN, TOO_OPEN)
            return self._anonymous
        scheme, _, text = sent[0].decode("latin-1").partition(" ")
        read = read_key(text.strip()) if len(sent) == 1 and scheme.lower() == "bearer" else None
        if read is None and self._known.required:
            raise unauthenticated("the header Authorization must be there once, as Bearer with a key")
        if read is None:
            raise unauthenticated(NO_KEYS)
        return self._holder(*read)

    async def find(self, scope: Scope) -> Principal:
        """As `of`, after a look for new keys."""
        try:
            await self._look_for_unknown()
        except GaplessError as error:
            raise unavailable("the credentials cannot be read now; nothing was done") from error
        if (found := self.of(scope)) is not None:
            return found
        if self.required:
            raise unauthenticated("the key is unknown, or it has expired or was revoked")
        raise unauthenticated(NO_KEYS)

    def with_ticket(self, ticket: str) -> Principal:
        """Who was given this ticket."""
        raise unauthenticated("there are no tickets yet: leave out the ticket")

    def _holder(self, key_id: str, secret: bytes) -> Principal | None:
        key, principal = self._keys.get(key_id, (None, None))
        if key is None or principal is None or principal.lifetime.over:
            return None
        if not hmac.compare_digest(key.digest, digest_of(secret)):
            raise unauthenticated("the key is unknown, or it has expired or was revoked")
        if key.expires_at_us is not None and key.expires_at_us <= self._now_us():
            principal.lifetime.end()
            return None
        return principal

    # --- what is known

    def bind(self, port: KeyPort) -> None:
        """Where the keys are. Those of another run of the service are forgotten."""
        self._port, self._known, self._keys = port, None, {}

    async def run(self) -> None:
        """Follow the keys until cancelled; whoever opens the gate has looked for them. While the database is
        away, those that are known stay good."""
        while True:
            await asyncio.sleep(FOLLOW_S)
            try:
                await self._look()
            except GaplessError as error:
                log.debug("the keys cannot be read: %s", error.detail)
            self._end_expired()

    async def look(self) -> None:
        """Look for the keys now, because one was made or revoked. Raises `unavailable`."""
        await self._look()

    async def _read(self) -> None:
        if self._port is None:
            raise unavailable("the service is not running")
        found = await self._port.credentials(None if self._known is None else self._known.version)
        if found is not None:
            self.learn(found)

    def learn(self, found: Credentials) -> None:
        """These are the keys: what others, or nobody, opened before ends."""
        before, self._known = self._keys, found
        self._keys = {}
        for key in found.keys:
            known, principal = before.get(key.id, (None, None))
            if known == key and principal is not None:
                del before[key.id]
            else:
                principal = key.principal()
            self._keys[key.id] = key, principal
        for _, principal in before.values():
            principal.lifetime.end()
        if found.required and not self._anonymous.lifetime.over:
            self._anonymous.lifetime.end()
            log.info("every request needs a credential from now on")
        elif not found.required and self._anonymous.lifetime.over:
            self._anonymous = Principal(self._namespace)
        self._end_expired()

    def _end_expired(self) -> None:
        now_us = self._now_us()
        for key, principal in self._keys.values():
            if key.expires_at_us is not None and key.expires_at_us <= now_us and not principal.lifetime.over:
                principal.lifetime.end()
