"""One connection to Redis on which every step has a timeout, even if the server misbehaves.

redis-py reads addresses, connects, encrypts and logs in. This module adds what it lacks. An answer is bounded
in size. A name is looked up once at a time. A connection that is given up is closed at once, even with data
left to send.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Self

from redis._parsers import _AsyncHiredisParser
from redis.asyncio.connection import Connection, UnixDomainSocketConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

STEP_TIMEOUT_S = 1.0
"""Timeout of connecting and logging in, of sending, and of the answers to commands."""
MAX_ANSWER_BYTES = 32 * 1024 * 1024
"""Limit of one answer or one message: twice the most that a process sends."""


_LARGE_ARRAY = re.compile(rb"[*~%>|]\d{5,}\r\n")
"""No answer to this service has this many parts. No message holds such bytes, because a line break in JSON
stands outside of strings. The parser would allocate memory for all parts at once, and freeing it stalls the
process for seconds."""
_LONGEST_HEAD_BYTES = 24


class LinkError(Exception):
    """Redis broke the protocol; the connection cannot be used any more."""


class _BoundedParser(_AsyncHiredisParser):
    """Limits the memory for an answer that does not end."""

    _unfinished_bytes = 0
    _tail = b""

    async def read_from_socket(self) -> bool:
        stream, reader = self._stream, self._reader
        assert stream is not None, "connected"
        assert reader is not None, "connected"
        buffer = await stream.read(self._read_size)
        if not buffer:
            raise RedisConnectionError("Redis closed the connection")
        self._unfinished_bytes += len(buffer)
        if self._unfinished_bytes > MAX_ANSWER_BYTES:
            raise LinkError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        if _LARGE_ARRAY.search(self._tail + buffer):
            raise LinkError("an answer of too many parts")
        self._tail = buffer[-_LONGEST_HEAD_BYTES:]
        reader.feed(buffer)
        return True

    async def read_response(self, *arguments: Any, **options: Any) -> Any:
        response = await super().read_response(*arguments, **options)
        self._unfinished_bytes = 0
        return response


class Address:
    """Where Redis is, and with which credentials to connect."""

    def __init__(self, url: str) -> None:
        options: dict[str, Any] = dict(parse_url(url))
        self._kind: type[Connection] = options.pop("connection_class", Connection)
        # Do not identify the driver: the service's user in Redis may only publish and listen.
        self._options = options | {
            "protocol": 2,
            "parser_class": _BoundedParser,
            "driver_info": None,
            "decode_responses": False,
            "socket_timeout": STEP_TIMEOUT_S,
            "socket_connect_timeout": STEP_TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),
        }
        for unused in ("max_connections", "timeout"):
            self._options.pop(unused, None)
        self._looking: asyncio.Future[Any] | None = None

    def connection(self) -> Connection:
        return self._kind(**self._options)

    async def found(self) -> None:
        """Return once the host's name resolves. A look-up that hangs keeps a thread until it ends, so there
        is one at a time, and callers share it."""
        if issubclass(self._kind, UnixDomainSocketConnection):
            return
        if self._looking is None or self._looking.done():
            host, port = self._options.get("host", "localhost"), self._options.get("port", 6379)
            look_up = asyncio.get_running_loop().getaddrinfo(host, port)
            self._looking = asyncio.ensure_future(look_up)
            self._looking.add_done_callback(lambda looking: looking.cancelled() or looking.exception())
        await asyncio.shield(self._looking)


class Link:
    """An open connection, used by one task."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._transport: asyncio.WriteTransport | None = None

    @classmethod
    async def open(cls, address: Address) -> Self:
        """Connect and log in. Raises the errors of redis-py, and TimeoutError."""
        async with asyncio.timeout(STEP_TIMEOUT_S):
            await address.found()
            link = cls(address.connection())
            try:
                await link._connection.connect()  # type: ignore[no-untyped-call]
                writer = link._connection._writer
                assert writer is not None, "connected"
                link._transport = writer.transport
            except BaseException:
                await link.close()
                raise
        return link

    async def ask(self, commands: Sequence[Sequence[bytes | str]]) -> list[Any]:
        """Send commands together; returns their answers in order. An error answer is returned, not raised."""
        async with asyncio.timeout(STEP_TIMEOUT_S):
            await self._connection.send_packed_command(self._connection.pack_commands(commands))
            return [await self._answer() for _ in commands]

    async def _answer(self) -> Any:
        try:
            return await self._connection.read_response()
        except ResponseError as error:
            return error

    async def tell(self, *command: bytes | str) -> None:
        """Send a command whose answer is read by `read`."""
        async with asyncio.timeout(STEP_TIMEOUT_S):
            await self._connection.send_command(*command)

    async def read(self, timeout_s: float) -> Any:
        """The next answer; None if no whole one came within `timeout_s` seconds. Raises an error answer."""
        return await self._connection.read_response(timeout=timeout_s, disconnect_on_error=False)

    async def close(self) -> None:
        """Close it at once. Data not sent yet would otherwise keep it open while the server hangs."""
        if self._transport is not None:
            self._transport.abort()
        await self._connection.disconnect(nowait=True)
