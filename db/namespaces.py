"""The names of namespaces and their ids, which never change."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from db.connect import Pool
from subscriptions.domain.delivery import Touched
from subscriptions.domain.errors import Code, GaplessError


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
    """Caches the namespaces it has read: in one history of the log none is ever renamed or removed."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._ids: dict[str, int] = {}
        self._names: dict[int, str] = {}

    async def id(self, name: str) -> int:
        """The id of this namespace. Raises GaplessError `not_found`, or `unavailable`."""
        if name not in self._ids:
            await self._read()
        if name not in self._ids:
            raise unknown_namespace(name)
        return self._ids[name]

    async def ids(self, names: Iterable[str]) -> list[int]:
        """The ids of these namespaces. Raises GaplessError `not_found`, or `unavailable`."""
        return [await self.id(name) for name in names]

    async def name(self, namespace_id: int) -> str:
        """The name of this namespace. Raises GaplessError `unavailable`."""
        if namespace_id not in self._names:
            await self._read()
        return self._names[namespace_id]

    def forget(self) -> None:
        """Read them again: in another history of the log the ids may mean other namespaces."""
        self._ids, self._names = {}, {}

    async def ensure(self, name: str) -> int:
        """Create the namespace if it is missing; returns its id."""
        return int(await self._pool.fetchval("ensure_namespace", name))

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
