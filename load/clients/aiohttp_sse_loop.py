"""PyPI `aiohttp-sse-client`: it reconnects after a complete response, but raises if a response is cut.

So a loop around it does what it does itself otherwise: it iterates again, with the last id.
"""

# It runs in its own environment, which has the client. The type checker does not see the client.
# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta

from aiohttp import ClientError
from aiohttp_sse_client.client import EventSource


async def follow(url: str, total: int) -> None:
    """Print the number of each message, until 2.5 s after the last one, to see doubled ones."""
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
