"""The embedded Postgres of a service under load, reached beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

import asyncpg

from load.children import CHECKOUT
from load.server import Server

_NAME = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Postgres:
    """Where it listens: a Unix socket in `folder`."""

    folder: str
    port: int

    @staticmethod
    def of(server: Server) -> Postgres:
        """The one that this service started."""
        return Postgres(*server.postgres_address())

    async def connect(self, database: str = "gapless", user: str = "gapless_owner") -> asyncpg.Connection:
        """A session of one's own."""
        return await asyncpg.connect(host=self.folder, port=self.port, user=user, database=database)

    async def fresh(self, database: str) -> str:
        """Make a database; its address."""
        session = await self.connect("postgres", "postgres")
        await session.execute(f'create database "{database}"')
        await session.close()
        return f"postgresql://postgres@/{database}?host={quote(self.folder, safe='')}&port={self.port}"


def blocks(text: str) -> dict[str, str]:
    """The named statements of one of the service's SQL files."""
    parts = _NAME.split(text)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def statement(file: str, name: str) -> str:
    """The statement that the service itself uses. Raises KeyError when there is none of that name."""
    return blocks((CHECKOUT / "db" / "sql" / file).read_text())[name]
