"""PyPI `centrifuge-python`: the Python client of Centrifugo; it reconnects and recovers by itself."""

# It runs in its own environment, which has the client. The type checker does not see the client.
# mypy: disable-error-code="import-not-found,misc"
from __future__ import annotations

import asyncio
import sys
from typing import Any
from urllib.request import urlopen

from centrifuge import (
    Client,
    PublicationContext,
    StreamPosition,
    SubscribedContext,
    SubscriptionErrorContext,
    SubscriptionEventHandler,
    UnsubscribedContext,
)


class Printer(SubscriptionEventHandler):
    """Prints the number of each message. Sets `over` 2.5 s after the last one, to see doubled ones."""

    def __init__(self, total: int) -> None:
        self.over = asyncio.Event()
        self._total = total

    async def on_publication(self, ctx: PublicationContext) -> None:
        """Called by the client."""
        number = ctx.pub.data["n"]
        print(number, flush=True)
        if number == self._total - 1:
            asyncio.get_running_loop().call_later(2.5, self.over.set)

    async def on_subscribed(self, ctx: SubscribedContext) -> None:
        """Called by the client."""
        if not ctx.recovered:
            print("not recovered:", ctx.stream_position, flush=True)
            self.over.set()

    async def on_error(self, ctx: SubscriptionErrorContext) -> None:
        """Called by the client."""
        print("subscription:", ctx.code, ctx.error, flush=True)

    async def on_unsubscribed(self, ctx: UnsubscribedContext) -> None:
        """Called by the client."""
        print("unsubscribed:", ctx.code, ctx.reason, flush=True)


async def before_the_first(channel: str) -> StreamPosition:
    """The position before the first message. The client asks for it before its first subscribe, and when the
    service refuses its own position. In the second case messages come twice, and the run fails."""
    return StreamPosition(offset=0, epoch="")


def asking(tokens: str, what: str) -> dict[str, Any]:
    """The option of a client, or of its subscription, that gets the next token from this address."""

    def read() -> str:
        with urlopen(tokens + what) as answer:
            text: str = answer.read().decode()
            return text

    async def ask(*_: object) -> str:
        return await asyncio.to_thread(read)

    return {"get_token": ask} if tokens else {}


async def follow(url: str, total: int, channel: str, tokens: str) -> None:
    """Print the number of each message until `over`. With an address of tokens, the connection and the
    subscription each have one that ends in some seconds."""
    printer = Printer(total)
    delays = {"min_reconnect_delay": 0.05, "max_reconnect_delay": 0.2, "proxy": None}
    client = Client(url, **delays, **asking(tokens, "connection"))
    own = asking(tokens, "subscription")
    subscription = client.new_subscription(channel, events=printer, get_state=before_the_first, **own)
    await client.connect()
    await subscription.subscribe()
    await printer.over.wait()
    await client.disconnect()


asyncio.run(follow(sys.argv[1], int(sys.argv[2]), sys.argv[4], "".join(sys.argv[5:])))
