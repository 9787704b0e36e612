"""A publisher that repeats each number, with its idempotency key, until it is confirmed, and its changers."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

from load.api import Api, RefusedError, UnreachableError
from load.changers import Board, Changer
from load.history import History, Shown, digest_of, state_of
from load.wire import Target

CHANNEL = "crashes"
PATH = f"/v1/channels/{CHANNEL}/messages"
PAGE = 1000
PAUSE_S = 0.05
CHANGERS = 2


async def publish_and_change(
    target: Target, history: History, chance: random.Random, stop: asyncio.Event
) -> list[str]:
    """Publish, while others change what is confirmed, until `stop`. Returns refusals without a reason."""
    board = Board(history)
    changers = [
        Changer(f"changer{number}", Api(target), board, random.Random(chance.random()))
        for number in range(CHANGERS)
    ]
    await asyncio.gather(publish(Api(target), board, stop), *(each.run(stop) for each in changers))
    for each in changers:
        each.api.close()
    return board.strange


async def publish(api: Api, board: Board, stop: asyncio.Event) -> None:
    """Publish 1, 2, 3, … until `stop`, each repeatedly until it is confirmed: without an answer it may be
    stored already."""
    history = board.history
    for number in count(1):
        body, key = {"data": number}, f"n-{number}"
        attempt = history.invoke(CHANNEL, digest_of(body), key)
        while not stop.is_set():
            try:
                said = await api.call("POST", PATH, body, 10.0, Idempotency_Key=key)
                history.ok(attempt, said["id"], said["seq"])
                board.ids.append(said["id"])
                break
            except (UnreachableError, RefusedError):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE_S):
                        await stop.wait()
        if stop.is_set():
            return


async def read_all(api: Api, history: History) -> int:
    """Read the whole channel with a fresh cursor, and as it is after all changes. Returns the number of
    messages. Raises UnreachableError."""
    cursor = history.cursor(f"history of {CHANNEL}", (CHANNEL,), fresh=True)
    async for message in _pages(api, "log"):
        history.receive(cursor, message["id"], message)
    shown = Shown(f"view of {CHANNEL}", (CHANNEL,), is_view=True)
    history.shown.append(shown)
    async for original in _pages(api, "latest"):
        history.show(shown, original["id"], state_of(original))
    return len(cursor.ids)


async def _pages(api: Api, view: str) -> AsyncIterator[dict[str, Any]]:
    """The messages of a view of the channel."""
    after, has_more = 0, True
    while has_more:
        page = await api.call("GET", f"{PATH}?after={after}&limit={PAGE}&view={view}")
        for message in page["messages"]:
            yield message
        after, has_more = page["cursor"], page["has_more"]
