"""One publisher that repeats each number, with its idempotency key, until it is confirmed."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import count

from load.api import Api, RefusedError, UnreachableError
from load.history import History, digest_of

CHANNEL = "crashes"
PATH = f"/v1/channels/{CHANNEL}/messages"
PAGE = 1000
PAUSE_S = 0.05


async def publish(api: Api, history: History, stop: asyncio.Event) -> None:
    """Publish 1, 2, 3, … until `stop`, each repeatedly until it is confirmed: without an answer it may be
    stored already."""
    for number in count(1):
        body, key = {"data": number}, f"n-{number}"
        attempt = history.invoke(CHANNEL, digest_of(body), key)
        while not stop.is_set():
            try:
                said = await api.call("POST", PATH, body, 10.0, Idempotency_Key=key)
                history.ok(attempt, said["id"], said["seq"])
                break
            except (UnreachableError, RefusedError):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PAUSE_S):
                        await stop.wait()
        if stop.is_set():
            return


async def read_all(api: Api, history: History) -> int:
    """Read the whole channel by pages with a fresh cursor. Returns the number of messages. Raises
    UnreachableError."""
    cursor = history.cursor(f"history of {CHANNEL}", (CHANNEL,), fresh=True)
    while True:
        after = cursor.ids[-1] if cursor.ids else 0
        page = await api.call("GET", f"{PATH}?after={after}&limit={PAGE}")
        for message in page["messages"]:
            history.deliver(cursor, message["id"], message["channel"], message["seq"], digest_of(message))
        if not page["has_more"]:
            return len(cursor.ids)
