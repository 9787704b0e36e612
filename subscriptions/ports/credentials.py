"""What the service needs to know who asks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from subscriptions.domain.key import Key
from subscriptions.domain.namespace import Limits, Namespace
from subscriptions.domain.principal import Principal


@dataclass(frozen=True, slots=True)
class Credentials:
    """All keys, and whether every request needs one. `version` changes with them."""

    required: bool
    version: int
    keys: tuple[Key, ...]


class KeyPort(Protocol):
    """Stores keys. Each method raises GaplessError `unavailable`."""

    async def credentials(self, known: int | None = None) -> Credentials | None:
        """All keys; None: they are still of version `known`."""

    async def put(self, key: Key) -> int:
        """Store a key; from then on every request needs a credential. Returns when it was made, in
        microseconds. Raises `not_found` (its namespace), or `rate_limited` (too many)."""

    async def delete(self, namespace: str | None, key_id: str) -> bool:
        """Remove a key of this namespace, or of any (None). Returns whether it was there."""

    async def require_credentials(self) -> None:
        """Have every request need a credential from now on."""


class TicketPort(Protocol):
    """Stores tickets by their digests. Each method raises GaplessError `unavailable`."""

    async def put(self, digest: bytes, holder: Principal, seconds: float) -> int:
        """Store a ticket; returns when it ends, in microseconds. Raises `not_found` (the namespace)."""

    async def delete(self, digest: bytes) -> Principal | None:
        """Remove a ticket; returns its holder, whose lifetime is not that of the credential. None: it was
        removed before, it has ended, or there is none."""


class NamespacePort(Protocol):
    """Makes and removes namespaces. Each method raises GaplessError `unavailable`, and except `put` and `all`
    `not_found`."""

    async def put(self, name: str, limits: Limits | None) -> bool:
        """Make a namespace that every process serves, or make an existing one such, and set its limits unless
        None. Returns whether it was made. Raises `rate_limited` when there are too many."""

    async def get(self, name: str) -> Namespace:
        """The namespace of this name."""

    async def all(self) -> list[Namespace]:
        """All of them, by name."""

    async def remove(self, name: str) -> tuple[int, bool]:
        """Remove some of what a namespace holds, and if that was little the namespace too; returns how much
        it was, and whether the namespace is gone."""
