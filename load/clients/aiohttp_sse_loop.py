"""PyPI `aiohttp-sse-client`: it reconnects after an orderly end, but lets a cut in mid-response through.

So the loop around it does what its own code does otherwise: iterate again, with the last id it saw.
"""

# It runs in an environment of its own, where the client is installed; the type checker has none of it.
# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta

from aiohttp import ClientError
from aiohttp_sse_client.client import EventSource


async def follow(url: str, total: int) -> None:
    """Print the number of each message until cancelled, and stop a moment after the last one."""
    last_id = ""
    while True:
        headers = {"Last-Event-ID": last_id} if last_id else {}
        try:
            async with EventSource(
                url, headers=headers, reconnection_time=timedelta(milliseconds=200)
            ) as source:
                async for event in source:
                    last_id = event.last_event_id or last_id
                    if event.type in (None, "message"):
                        number = json.loads(event.data)["data"]["n"]
                        print(number, flush=True)
                        if number == total - 1:
                            asyncio.get_running_loop().call_later(2.5, sys.exit, 0)
        except (ClientError, ConnectionError):
            await asyncio.sleep(0.5)


asyncio.run(follow(sys.argv[1], int(sys.argv[2])))
