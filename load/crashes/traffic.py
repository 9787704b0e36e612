"""One publisher that never stops asking: each number until it is answered, by its key."""

from __future__ import annotations

import asyncio
import contextlib

import orjson

from load.crashes.books import Books, Stored
from load.server import Server
from load.wire import Connection

CHANNEL = "crashes"
PAGE = 1000
PAUSE_S = 0.05


async def publish(server: Server, books: Books, stop: asyncio.Event) -> None:
    """Publish 1, 2, 3, … until `stop`, each again until it is confirmed: what is unanswered may be stored."""
    number = max(books.asked, default=0)
    connection: Connection | None = None
    while not stop.is_set():
        if number in books.confirmed or number == 0:
            number += 1
        books.asked.add(number)
        try:
            connection = connection or await Connection.open(server.target)
            books.confirmed[number] = await _ask(connection, server, number)
        except (OSError, ValueError):
            if connection is not None:
                connection.close()
            connection = None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), PAUSE_S)
    if connection is not None:
        connection.close()


async def _ask(connection: Connection, server: Server, number: int) -> int:
    """The id. Raises ValueError for any other answer than a confirmation."""
    body = orjson.dumps({"data": number})
    path = f"/v1/channels/{CHANNEL}/messages"
    request = server.target.request("POST", path, body, {
        "Content-Type": "application/json", "Idempotency-Key": f"n-{number}"
    })  # fmt: skip
    answer = await connection.ask(request, 10.0)
    if answer.status != 201:
        raise ValueError(f"{answer.status}: {answer.body[:200]!r}")
    message_id: int = orjson.loads(answer.body)["id"]
    return message_id


async def read_all(server: Server) -> list[Stored]:
    """The whole channel, by pages. Raises RuntimeError when a page does not come."""
    stored: list[Stored] = []
    while True:
        after = stored[-1].id if stored else 0
        answer = await server.get(f"/v1/channels/{CHANNEL}/messages?after={after}&limit={PAGE}", 30.0)
        if answer is None or answer.status != 200:
            raise RuntimeError(f"history does not come: {answer}")
        page = orjson.loads(answer.body)
        stored += [Stored(m["id"], m["seq"], m["data"]) for m in page["messages"]]
        if not page["has_more"]:
            return stored
