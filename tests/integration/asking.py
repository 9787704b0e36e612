"""A request for each row of the table of routes, about given names, and what the service keeps meanwhile."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import msgspec

from app.api.route import Names, Route
from load.relay import PIECE_BYTES, Streams, forward, until_first_ends
from tests.unit.test_grants import COMMANDS, RECEIPT, asking

_NAMES = {"channel", "channels", "subscription", "pattern", "name"}
_QUERIED = {"channel", "subscription", "pattern"}
_ANY_NAME = re.compile(r"(held|void)-\d")
FIRST = '{"id":1,"connect":{}}'


@dataclass(frozen=True, slots=True)
class Named:
    """What a request is about: a name of channels, subscriptions and policies, numbers, a receipt and the id
    of a key."""

    name: str
    message: int
    dead_letter: int
    scheduled: int
    receipt: str
    key: str

    def path(self, route: Route) -> str:
        """The path of a row."""
        numbers = {
            "message_id": self.message,
            "dead_letter_id": self.dead_letter,
            "scheduled_id": self.scheduled,
            "key": self.key,
        }
        return route.path.format(**{place: numbers.get(place, quote(self.name)) for place, _ in route.places})

    def requests(self, route: Route) -> Iterator[dict[str, Any]]:
        """Requests to a row: the one of its document, and for rows whose names are in the query or the body,
        those of `asking`."""
        asked: dict[str, Any] = {"method": route.method, "url": self.path(route)}
        fields = () if route.query is None else msgspec.structs.fields(route.query)
        names = {field.encode_name for field in fields}
        params = dict.fromkeys(sorted(names & _QUERIED), self.name)
        if "cf_connect" in names:
            params["cf_connect"] = FIRST
        example = None if route.body is None else route.body.example
        body = {} if example is None else {"json": self.about(example)}
        yield asked | {"params": params} | body
        if route.needs.names is Names.ASKED:
            for query, variant in asking(route):
                more = {} if variant is None else {"json": self.about(variant)}
                yield asked | {"url": asked["url"] + query.replace("here", quote(self.name))} | more

    def about(self, part: Any, member: str = "") -> Any:
        """A body or a command, about these names."""
        if isinstance(part, list):
            return [self.about(each, member) for each in part]
        if isinstance(part, dict):
            return {name: self.about(each, name) for name, each in part.items()}
        if member == "receipts":
            return self.receipt
        if member == "ids":
            return self.dead_letter
        if member == "wait":
            return 0
        return self.name if member in _NAMES and isinstance(part, str) and part != ">" else part

    def commands(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Commands of the client protocol, by their method."""
        for method, forms in COMMANDS.items():
            for form in forms:
                yield method, self.about(form)

    def blank(self, text: str) -> str:
        """A text without what is asked for, and without any name of a test."""
        for known in (self.receipt, self.key):
            text = text.replace(known, "~")
        numbers = "|".join(str(one) for one in (self.message, self.dead_letter, self.scheduled))
        return _ANY_NAME.sub(
            "~", re.sub(f'(?:(?<=not found: )|(?<=has no message ))({numbers})(?=")', "~", text)
        )


NOWHERE = Named("void-0", 4_000_000_000_001, 4_000_000_000_002, 4_000_000_000_003, RECEIPT, "000000000000")
"""Names that nothing has."""


class Recorder:
    """A TCP proxy before Postgres that keeps the text of each statement that is executed."""

    def __init__(self, url: str) -> None:
        self._to = url
        self._streams = Streams()
        self.texts: list[str] = []

    async def start(self) -> int:
        """The port on which it listens."""
        return await self._streams.listen(self._serve, 0)

    async def stop(self) -> None:
        """Drop all connections."""
        await self._streams.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._streams.connected_to(self._to) as (there, back):
            await until_first_ends(self._listen(reader, back), forward(there, writer))

    async def _listen(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Pass on what a client says. Its first messages have no kind, and the others do."""
        pending, began, named = b"", False, dict[bytes, str]()
        while data := await source.read(PIECE_BYTES):
            pending += data
            while len(pending) >= 5:
                (size,) = struct.unpack_from("!i", pending, int(began))
                end = size + int(began)
                if len(pending) < end:
                    break
                message, pending = pending[:end], pending[end:]
                if began:
                    self._note(message[:1], message[5:], named)
                # 80877103 asks for TLS, and is answered before the startup message comes.
                began = began or message[4:8] != struct.pack("!i", 80877103)
            sink.write(data)
            await sink.drain()

    def _note(self, kind: bytes, body: bytes, named: dict[bytes, str]) -> None:
        parts = body.split(b"\0")
        if kind == b"P":
            named[parts[0]] = parts[1].decode()
        elif kind == b"B":
            self.texts.append(named[parts[1]])
        elif kind == b"Q":
            self.texts.append(parts[0].decode())
