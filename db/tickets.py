"""Implements `TicketPort`."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from db.connect import Pool
from db.keys import grants_json, grants_of
from db.namespaces import Namespaces
from subscriptions.domain.model import microseconds
from subscriptions.domain.principal import Principal

REMOVED_AT_ONCE = 100


class _Holder(msgspec.Struct, omit_defaults=True):
    """Who was given a ticket, as it is stored. `expires_at_us`: when the credential ends."""

    subject: str | None = None
    grants: msgspec.Raw | UnsetType = UNSET
    operator: bool = False
    key_id: str | None = None
    expires_at_us: int | None = None


_decode = msgspec.json.Decoder(_Holder).decode


class Tickets:
    """Stores and takes tickets over one pool."""

    def __init__(self, pool: Pool, namespaces: Namespaces) -> None:
        self._pool = pool
        self._namespaces = namespaces

    async def put(self, digest: bytes, holder: Principal, seconds: float) -> int:
        grants = UNSET if holder.grants is None else msgspec.Raw(grants_json(holder.grants))
        stored = _Holder(holder.subject, grants, holder.operator, holder.key_id, holder.expires_at_us)
        namespace_id = await self._namespaces.id(holder.namespace)
        arguments = (digest, namespace_id, msgspec.json.encode(stored).decode(), seconds, REMOVED_AT_ONCE)
        return microseconds(await self._pool.fetchval("put_ticket", *arguments))

    async def delete(self, digest: bytes) -> Principal | None:
        row = await self._pool.fetchrow("take_ticket", digest)
        if row is None:
            return None
        holder = _decode(row["holder"])
        grants = None if isinstance(holder.grants, UnsetType) else grants_of(holder.grants)
        return Principal(
            row["namespace"], holder.subject, grants, holder.operator, holder.expires_at_us, holder.key_id
        )
