"""From the credential of a request to who asks."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from starlette.types import Scope

from app.http.bearer import is_token
from app.http.local import is_local
from app.http.refusals import Refusals
from subscriptions.domain.errors import Code, GaplessError, unauthenticated, unavailable
from subscriptions.domain.key import Key, digest_of, read_key
from subscriptions.domain.principal import Lifetime, Principal
from subscriptions.engine.single_flight import SingleFlight
from subscriptions.ports import Credentials, KeyPort, TicketPort

if TYPE_CHECKING:
    from app.http.tokens import Tokens

log = logging.getLogger(__name__)

FOLLOW_S: Final = 1.0
"""How soon a process knows of a key that was revoked."""
PACE_S: Final = 0.1
"""Unknown keys make a process look for new ones at most this often."""
TICKET_BYTES: Final = 32
MALFORMED: Final = "the header Authorization must be there once, as Bearer with a credential"
UNREADABLE: Final = "the credential must be a key or a token that this service can check"
UNKNOWN: Final = "the credential is unknown, or it has expired or was revoked"
NO_KEYS: Final = "no keys were made here, so nothing can check this credential: send none"
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
    refused then, since nothing can check it. With `tokens`, credentials are required from the start.
    """

    def __init__(
        self,
        namespace: str,
        now_us: Callable[[], int],
        found: Credentials | None = None,
        *,
        anywhere: bool = False,
        tokens: Tokens | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        self.refusals = refusals or Refusals()
        self._namespace = namespace
        self._anywhere = anywhere
        self._now_us = now_us
        self._tokens = tokens
        self._anonymous = Principal(namespace)
        self._stranger = Principal(namespace, grants=())
        self._known: Credentials | None = None
        self._everybody: Principal | None = None
        """Who sends no credential, while none is needed."""
        self._keys: dict[str, tuple[Key, Principal]] = {}
        self._checked: dict[str | bytes, Principal] = {}
        """Each key that was checked: by its text, and by the header that most clients send it in."""
        self._port: KeyPort | None = None
        self._tickets: TicketPort | None = None
        self._look = SingleFlight(self._read)
        self._look_for_unknown = SingleFlight(self._look)
        self._look_for_unknown.pace_s = PACE_S
        if found is not None:
            self.learn(found)

    def __repr__(self) -> str:
        return f"Principals({len(self._keys)} keys, {self._tokens!r})"

    @property
    def required(self) -> bool:
        """Whether every request needs a credential; also while that is not known."""
        return self._tokens is not None or self._known is None or self._known.required

    @property
    def known_required(self) -> bool:
        """Whether this process has learned that every request needs a credential."""
        return self._tokens is not None or (self._known is not None and self._known.required)

    @property
    def ready(self) -> bool:
        """Whether the keys are known."""
        return self._known is not None

    def of(self, scope: Scope, *, needed: bool = True, later: bool = False) -> Principal | None:
        """Who sends this request. None: that is not known here yet; `find` looks for it. A credential that is
        not `needed` may be left out, and so may one that comes `later`: whoever does is a stranger. Raises
        `unauthenticated`, `forbidden`."""
        # Each request comes here.
        sent = [value for name, value in scope["headers"] if name == b"authorization"]
        if not sent and self._everybody is not None and (self._anywhere or not needed or is_local(scope)):
            return self._everybody
        if not sent and ((not needed and self.required) or (later and self.known_required)):
            return self._stranger
        if self._known is None:
            return None
        if sent:
            if len(sent) == 1 and (checked := self._checked.get(sent[0])) and self._is_good(checked):
                return checked
            scheme, _, text = sent[0].decode("latin-1").partition(" ")
            if len(sent) == 1 and scheme.lower() == "bearer":
                return self.of_text(text.strip())
            raise unauthenticated(MALFORMED if self.required else NO_KEYS)
        if self.required:
            raise unauthenticated("this needs a credential: send Authorization: Bearer with a key or a token")
        raise GaplessError(Code.FORBIDDEN, TOO_OPEN)

    def of_text(self, text: str) -> Principal | None:
        """As `of`, for the credential itself."""
        if self._tokens is not None and is_token(text):
            return self._tokens.read(text)
        if (checked := self._checked.get(text)) and self._is_good(checked):
            return checked
        read = read_key(text)
        if read is None:
            raise unauthenticated(UNREADABLE if self.required else NO_KEYS)
        holder = self._holder(*read)
        if holder is not None:
            self._checked[text] = self._checked[b"Bearer " + text.encode()] = holder
        return holder

    async def find(self, scope: Scope, *, later: bool = False) -> Principal:
        """As `of`, after a look for what is new."""
        return await self._find(lambda: self.of(scope, later=later))

    async def find_text(self, text: str) -> Principal:
        """As `find`, for the credential itself."""
        return await self._find(lambda: self.of_text(text))

    def refused(self, scope: Scope, error: GaplessError) -> GaplessError:
        """The error that is told to the sender of a request: this one, or that too many without a good
        credential came from its address."""
        return self.refusals.judge(self.refusals.address_of(scope), error)

    async def _find(self, read: Callable[[], Principal | None]) -> Principal:
        """First among the API keys, then among those of tokens, which may be far away."""
        await self._look_around()
        found = read()
        if found is None and self._tokens is not None:
            await self._tokens.keys.refresh()
            found = read()
            if found is None and not self._tokens.keys.known:
                raise unavailable("the keys of tokens cannot be read now; nothing was done")
        if found is None:
            raise unauthenticated(UNKNOWN if self.required else NO_KEYS)
        return found

    async def _look_around(self) -> None:
        try:
            await self._look_for_unknown()
        except GaplessError as error:
            raise unavailable("the credentials cannot be read now; nothing was done") from error

    def _holder(self, key_id: str, secret: bytes) -> Principal | None:
        key, principal = self._keys.get(key_id, (None, None))
        if key is None or principal is None or principal.lifetime.over:
            return None
        if not hmac.compare_digest(key.digest, digest_of(secret)):
            raise unauthenticated(UNKNOWN)
        if self._is_past(key.expires_at_us):
            principal.lifetime.end()
            return None
        return principal

    def _is_good(self, holder: Principal) -> bool:
        return not holder.lifetime.over and not self._is_past(holder.expires_at_us)

    def _is_past(self, at_us: int | None) -> bool:
        return at_us is not None and at_us <= self._now_us()

    def is_good(self, key_id: str | None, until_us: int | None) -> bool:
        """Whether an API key, or a token that ends then, is still good. While no credentials are required,
        whatever it was is good."""
        if self._known is not None and not self.required:
            return True
        if key_id is None:
            return until_us is not None and until_us > self._now_us()
        _, principal = self._keys.get(key_id, (None, None))
        return principal is not None and not principal.lifetime.over

    # --- tickets

    async def give_ticket(self, holder: Principal, seconds: float) -> tuple[str, int]:
        """A ticket, and when it ends, in microseconds. Raises `unavailable`."""
        if self._tickets is None:
            raise unavailable("the service is not running")
        ticket = secrets.token_urlsafe(TICKET_BYTES)
        return ticket, await self._tickets.put(digest_of(ticket.encode()), holder, seconds)

    async def with_ticket(self, ticket: str) -> Principal:
        """Who was given this ticket, which is used up now. Raises `unauthenticated`, `unavailable`."""
        if self._tickets is None:
            raise unavailable("the service is not running")
        holder = await self._tickets.delete(digest_of(ticket.encode()))
        if holder is None:
            raise unauthenticated("the ticket was used, or it has expired: ask for another one")
        if holder.key_id is not None:
            if holder.key_id not in self._keys:
                await self._look_around()
            _, of_key = self._keys.get(holder.key_id, (None, None))
            if of_key is None or of_key.lifetime.over:
                raise unauthenticated("the key that asked for the ticket has expired or was revoked")
            return replace(holder, lifetime=of_key.lifetime)
        if holder.subject is not None:
            return replace(holder, lifetime=self._lifetime_until(holder.expires_at_us))
        if self.required:
            raise unauthenticated("the ticket is of nobody, and credentials are needed now")
        return replace(holder, lifetime=self._anonymous.lifetime)

    def _lifetime_until(self, expires_at_us: int | None) -> Lifetime:
        """That of a token."""
        lifetime = Lifetime()
        left_s = ((expires_at_us or 0) - self._now_us()) / 1e6
        asyncio.get_running_loop().call_later(max(0.0, left_s), lifetime.end)
        return lifetime

    # --- what is known

    def bind(self, keys: KeyPort, tickets: TicketPort) -> None:
        """Where keys and tickets are. Those of another run of the service are forgotten."""
        self._port, self._tickets, self._known, self._keys = keys, tickets, None, {}
        self._checked = {}
        self._everybody = None

    async def run(self) -> None:
        """Follow the keys until cancelled; whoever opens the gate has looked for them. While the database is
        away, those that are known stay good."""
        while True:
            await asyncio.sleep(FOLLOW_S)
            try:
                await self._look()
            except GaplessError as error:
                log.debug("the keys cannot be read: %s", error.detail)
            if self._tokens is not None:
                self._tokens.follow_keys()
            self._end_expired()

    async def look(self) -> None:
        """Look for the keys now: at the start, and when one was made or revoked. Raises `unavailable`."""
        await self._look()

    async def _read(self) -> None:
        if self._port is None:
            raise unavailable("the service is not running")
        found = await self._port.credentials(None if self._known is None else self._known.version)
        if found is not None:
            if self._tokens is not None and not found.required:
                await self._port.require_credentials()
            self.learn(found)

    def learn(self, found: Credentials) -> None:
        """These are the keys: what others, or nobody, opened before ends."""
        before, self._known = self._keys, found
        self._keys, self._checked = {}, {}
        for key in found.keys:
            known, principal = before.get(key.id, (None, None))
            if known == key and principal is not None:
                del before[key.id]
            else:
                principal = key.principal()
            self._keys[key.id] = key, principal
        for _, principal in before.values():
            principal.lifetime.end()
        if self.required and not self._anonymous.lifetime.over:
            self._anonymous.lifetime.end()
            log.info("every request needs a credential from now on")
        elif not self.required and self._anonymous.lifetime.over:
            self._anonymous = Principal(self._namespace)
        self._everybody = None if self.required else self._anonymous
        self._end_expired()

    def _end_expired(self) -> None:
        now_us = self._now_us()
        for key, principal in self._keys.values():
            if key.expires_at_us is not None and key.expires_at_us <= now_us and not principal.lifetime.over:
                principal.lifetime.end()
        if self._tokens is not None:
            self._tokens.end_expired()
