"""The WebSocket of one member: deliveries come over it, and settlements and extensions go over it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from load.api import RefusedError, UnreachableError
from load.websocket import Stream, handshake
from load.wire import Target

_CONNECT, _CONSUME = 1, 2


class MemberSocket:
    """One connection. `on_told` is called when the service has answered the consume, `on_deliveries` with the
    deliveries of each read."""

    def __init__(
        self, on_told: Callable[[], None], on_deliveries: Callable[[list[dict[str, Any]]], None]
    ) -> None:
        self._on_told, self._on_deliveries = on_told, on_deliveries
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_id = _CONSUME
        self._stream: Stream | None = None
        self._commands = b""
        self.closed = asyncio.Event()

    async def open(self, target: Target, subscription: str, prefetch: int) -> None:
        """Connect, and ask for deliveries. Raises OSError."""
        consume = {"id": _CONSUME, "consume": {"subscription": subscription, "prefetch": prefetch}}
        self._commands = msgspec.json.encode({"id": _CONNECT, "connect": {}})
        self._commands += b"\n" + msgspec.json.encode(consume)
        stream = self._stream = Stream(handshake(target, "/v1/ws"), self._opened, self._read, self._ended)
        await asyncio.get_running_loop().create_connection(lambda: stream, target.host, target.port)

    async def settle(self, verb: str, body: dict[str, Any], wait_s: float) -> dict[str, Any]:
        """The results. Raises UnreachableError if it is unknown whether it was done, and RefusedError."""
        if self._stream is None or self.closed.is_set():
            raise UnreachableError("the connection ended")
        self._last_id += 1
        waiting = self._waiting[self._last_id] = asyncio.get_running_loop().create_future()
        self._stream.send(msgspec.json.encode({"id": self._last_id, verb: body}))
        try:
            async with asyncio.timeout(wait_s):
                reply = await waiting
        except TimeoutError as error:
            raise UnreachableError(f"no reply in {wait_s} s") from error
        if "error" in reply:
            refused = reply["error"]
            if refused.get("temporary"):
                raise UnreachableError(refused["message"])
            raise RefusedError(refused["code"], refused["message"].encode())
        results: dict[str, Any] = reply[verb]
        return results

    def abort(self) -> None:
        """Drop the connection without a close."""
        if self._stream is not None:
            self._stream.abort()

    def _opened(self, status: int, head: bytes) -> None:
        if status == 101 and self._stream is not None:
            self._stream.send(self._commands)
        else:
            self.closed.set()

    def _read(self, lines: list[bytes]) -> None:
        given = []
        for line in lines:
            said: dict[str, Any] = msgspec.json.decode(line)
            push = said.get("push", {})
            if not said and self._stream is not None:
                self._stream.send(b"{}")
            elif "delivery" in push:
                given.append(push["delivery"])
            elif "goodbye" in push or ("error" in said and said["id"] <= _CONSUME):
                self.closed.set()
            elif said.get("id") == _CONSUME:
                self._on_told()
            elif (waiting := self._waiting.pop(said.get("id", 0), None)) and not waiting.done():
                waiting.set_result(said)
        if given:
            self._on_deliveries(given)

    def _ended(self) -> None:
        self.closed.set()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(UnreachableError("the connection ended"))
        self._waiting.clear()
