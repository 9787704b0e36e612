"""The names of namespaces and their ids, which never change."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from db.connect import Pool
from subscriptions.domain.delivery import Touched
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.namespace import Limits, Namespace

SOME = 100
"""How many rows of a kind one statement removes from a namespace."""


class _Published(msgspec.Struct):
    """A channel that a decision published to."""

    namespace_id: int
    channel: str
    channel_id: int
    last_id: int
    last_seq: int


_decode_published = msgspec.json.Decoder(list[_Published] | None).decode


def unknown_namespace(name: str) -> GaplessError:
    """What is said of a namespace that does not exist."""
    return GaplessError(Code.NOT_FOUND, f"namespace {name} does not exist")


class Namespaces:
    """Caches the namespaces it has read. None is ever renamed. One that was removed since may still be
    cached: rows that refer to it are then refused by the database."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._ids: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._shared: frozenset[str] = frozenset()

    async def id(self, name: str) -> int:
        """The id of this namespace. Raises GaplessError `not_found`, or `unavailable`."""
        if name not in self._ids:
            await self._read()
        if name not in self._ids:
            raise unknown_namespace(name)
        return self._ids[name]

    async def ids(self, names: Collection[str]) -> list[int]:
        """The ids of those of these namespaces that exist. Raises GaplessError `unavailable`."""
        if any(name not in self._ids for name in names):
            await self._read()
        return [self._ids[name] for name in names if name in self._ids]

    async def shared(self) -> frozenset[str]:
        """The names, read anew, of the namespaces that every process serves. Raises GaplessError
        `unavailable`."""
        await self._read()
        return self._shared

    async def name(self, namespace_id: int) -> str:
        """The name of this namespace. Raises GaplessError `unavailable`."""
        if namespace_id not in self._names:
            await self._read()
        return self._names[namespace_id]

    def forget(self) -> None:
        """Read them again: in another history of the log the ids may mean other namespaces."""
        self._ids, self._names, self._shared = {}, {}, frozenset()

    async def ensure(self, name: str) -> int:
        """Create the namespace if it is missing; returns its id."""
        return int(await self._pool.fetchval("ensure_namespace", name))

    async def put(self, name: str, limits: Limits | None) -> bool:
        """Make a namespace that every process serves, or make an existing one such, and set its limits unless
        None. Returns whether it was made. Raises GaplessError `rate_limited` when there are too many, or
        `unavailable`."""
        text = None if limits is None else msgspec.json.encode(limits).decode()
        return bool(await self._pool.fetchval("put_namespace", name, text))

    async def get(self, name: str) -> Namespace:
        """Raises GaplessError `not_found`, or `unavailable`."""
        for namespace in await self.all():
            if namespace.name == name:
                return namespace
        raise unknown_namespace(name)

    async def all(self) -> list[Namespace]:
        """All of them, by name. Raises GaplessError `unavailable`."""
        rows = await self._pool.fetch("described_namespaces")
        return [Namespace(r["name"], msgspec.json.decode(r["limits"]), r["shared"]) for r in rows]

    async def remove(self, name: str) -> tuple[int, bool]:
        """Remove some of what a namespace holds, and if that was little the namespace too; returns how much
        it was, and whether the namespace is gone. Raises GaplessError `not_found`, or `unavailable`."""
        namespace_id = await self.id(name)
        emptied = await self._empty(namespace_id)
        removed = emptied < SOME and bool(await self._pool.fetchval("remove_namespace", namespace_id))
        if removed:
            self.forget()
        return emptied, removed

    async def _empty(self, namespace_id: int) -> int:
        """Subscriptions go first, so that nothing becomes a dead letter meanwhile. Deleted channels leave
        their messages to maintenance, and keys of idempotency end by age."""
        emptied = 0
        for row in await self._pool.fetch("subscriptions", namespace_id, None, "", SOME):
            emptied += 1
            await self._pool.fetchval("remove_subscription", namespace_id, row["name"], False, False, None)
        emptied += int(await self._pool.fetchval("empty_namespace", namespace_id, SOME))
        for row in (await self._pool.fetch("policies", namespace_id))[:SOME]:
            emptied += 1
            await self._pool.fetchval("delete_policy", namespace_id, row["name"], None)
        emptied += int(await self._pool.fetchval("delete_some_channels", namespace_id, SOME))
        nothing = [None] * 5
        return emptied + int(await self._pool.fetchval("purge_dead_letters", namespace_id, *nothing, SOME))

    async def set_auto_create(self, on: bool) -> None:
        """Set for every namespace whether a publish in SQL creates its channel."""
        await self._pool.fetch("set_auto_create", on)

    async def touched(self, text: str | msgspec.Raw | None) -> tuple[Touched, ...]:
        """The channels that a decision published to, from the JSON of the database."""
        published = None if text is None else _decode_published(text)
        found = []
        for one in published or ():
            name = await self.name(one.namespace_id)
            found.append(Touched(name, one.channel, one.channel_id, one.last_id, one.last_seq))
        return tuple(found)

    async def _read(self) -> None:
        rows = await self._pool.fetch("namespaces")
        self._ids = {row["name"]: row["id"] for row in rows}
        self._names = {row["id"]: row["name"] for row in rows}
        self._shared = frozenset(row["name"] for row in rows if row["shared"])
