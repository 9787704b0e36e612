"""The part of the asyncio face that connects over WebSocket. It has no blocking twin."""

from __future__ import annotations

from functools import cached_property
from ssl import SSLContext
from typing import Literal

from gapless._async.calls import AsyncCalls
from gapless._async.connection import AsyncConnection


class AsyncConnecting(AsyncCalls):
    """Opens connections, and closes them with the client."""

    def connect(
        self,
        *,
        max_in_flight: int = 1000,
        lateness: float = 10.0,
        ssl: SSLContext | None = None,
        proxy: str | Literal[True] | None = True,
    ) -> AsyncConnection:
        """A WebSocket for publishes in flight and streams; needs `pip install gapless[websocket]`.

        `max_in_flight`: publishes that wait for their replies; more wait their turn. `lateness`: how many
        seconds a ping of the server may be late before the connection counts as lost. `ssl` and `proxy`
        replace those of an `http_client`, which it does not use; `proxy=True` is the environment's. It ends
        with this client.
        """
        connection = AsyncConnection(
            self._config,
            self._effects,
            on_close=self._connections.discard,
            max_in_flight=max_in_flight,
            lateness=lateness,
            ssl=ssl,
            proxy=proxy,
        )
        self._connections.add(connection)
        return connection

    async def aclose(self) -> None:
        """Closes the connections, which ends open subscriptions. A caller's own `http_client` stays open."""
        for connection in list(self._connections):
            await connection.aclose()
        await super().aclose()

    @cached_property
    def _connections(self) -> set[AsyncConnection]:
        return set()
