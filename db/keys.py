"""Implements `KeyPort`: API keys."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import msgspec

from db.connect import Pool
from db.namespaces import Namespaces
from subscriptions.domain.key import Key
from subscriptions.domain.model import EPOCH, microseconds
from subscriptions.domain.principal import Action, Grant
from subscriptions.ports import Credentials


class _Grant(msgspec.Struct):
    """A grant as it is stored."""

    actions: list[Action]
    channels: list[str]
    subscriptions: list[str]


_decode = msgspec.json.Decoder(list[_Grant]).decode


class Keys:
    """Reads and changes keys over one pool."""

    def __init__(self, pool: Pool, namespaces: Namespaces) -> None:
        self._pool = pool
        self._namespaces = namespaces

    async def credentials(self, known: int | None = None) -> Credentials | None:
        state = await self._pool.fetchrow("keys_state")
        if state["keys_version"] == known:
            return None
        # The keys are read after their version, so they are those of that version or newer ones.
        return Credentials(state["credentials_required"], state["keys_version"], await self.all())

    async def all(self) -> tuple[Key, ...]:
        rows = await self._pool.fetch("keys")
        return tuple(
            Key(
                row["id"],
                row["namespace"],
                row["name"],
                row["digest"],
                None if row["grants"] is None else grants_of(row["grants"]),
                row["operator"],
                microseconds(row["created_at"]),
                None if row["expires_at"] is None else microseconds(row["expires_at"]),
            )
            for row in rows
        )

    async def put(self, key: Key) -> int:
        stored = None if key.grants is None else grants_json(key.grants).decode()
        expires = None if key.expires_at_us is None else EPOCH + timedelta(microseconds=key.expires_at_us)
        namespace_id = await self._namespaces.id(key.namespace)
        arguments = (key.id, namespace_id, key.name, key.digest, stored, key.operator, expires)
        return microseconds(await self._pool.fetchval("create_key", *arguments))

    async def delete(self, namespace: str | None, key_id: str) -> bool:
        namespace_id = None if namespace is None else await self._namespaces.id(namespace)
        return bool(await self._pool.fetchval("revoke_key", namespace_id, key_id))

    async def require_credentials(self) -> None:
        await self._pool.fetchval("require_credentials")

    async def open_installation(self) -> None:
        """Revoke all keys, and let requests come without a credential again."""
        await self._pool.fetchval("open_installation")


def grants_json(grants: Iterable[Grant]) -> bytes:
    """Grants as they are stored."""
    return msgspec.json.encode(
        [_Grant(sorted(g.actions), list(g.channels), list(g.subscriptions)) for g in grants]
    )


def grants_of(text: str | msgspec.Raw) -> tuple[Grant, ...]:
    """Grants that were stored."""
    return tuple(
        Grant(frozenset(one.actions), tuple(one.channels), tuple(one.subscriptions)) for one in _decode(text)
    )
