"""Keeps webhooks out of private networks, at two moments.

When a subscription is defined, `check_url` judges the text of the URL. When a delivery is sent, `Guard`
judges the addresses of its host: it resolves the name once, checks every address, and connects to one of
those. The name is not resolved again, so a change of it after the check has no effect.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from ipaddress import ip_address
from typing import Any, Final

import httpcore

from app.faces.webhooks.addresses import is_public

MAX_ADDRESSES: Final = 4
"""How many of a host's addresses are tried; all of them are checked."""
LOOKUP_THREADS: Final = 32
MAX_FOUND: Final = 1000
"""How many names that were found are remembered."""

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""Addresses of a host, best first. Raises OSError when there are none."""


class UnreachableError(Exception):
    """No connection was made. The text holds no address, because the webhook's owner may read it."""


class SystemLookup:
    """Asks the system's resolver on its own threads, so that a slow name server delays no other work.

    A thread that waits for a name server cannot be cancelled. So each name is asked for once at a time, even
    if no caller waits any more, and names that were not found the last time share half of the threads.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUP_THREADS, "webhook-lookup")
        self._strangers = asyncio.Semaphore(LOOKUP_THREADS // 2)
        self._asking: dict[tuple[str, int], asyncio.Task[list[str]]] = {}
        self._found: OrderedDict[str, None] = OrderedDict()

    async def __call__(self, host: str, port: int) -> list[str]:
        asking = self._asking.get((host, port))
        if asking is None:
            asking = self._asking[host, port] = asyncio.create_task(self._ask(host, port))
            asking.add_done_callback(partial(self._done, (host, port)))
        return await asyncio.shield(asking)

    async def _ask(self, host: str, port: int) -> list[str]:
        async with nullcontext() if host in self._found else self._strangers:
            self._found.pop(host, None)
            ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
            found = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        self._found[host] = None
        if len(self._found) > MAX_FOUND:
            self._found.popitem(last=False)
        return [str(address[0]) for *_, address in found]

    def _done(self, key: tuple[str, int], asking: asyncio.Task[list[str]]) -> None:
        del self._asking[key]
        if not asking.cancelled():
            asking.exception()  # Waiting callers have got the error; there may be none any more.

    def close(self) -> None:
        """Releases the threads. A thread that waits for an answer ends when the resolver gives up."""
        for asking in self._asking.values():
            asking.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)


class Guard(httpcore.AsyncNetworkBackend):
    """The network for webhooks, limited to allowed addresses."""

    def __init__(
        self, allow_private: bool, lookup: Lookup, network: httpcore.AsyncNetworkBackend | None = None
    ) -> None:
        self._allow_private = allow_private
        self._lookup = lookup
        self._network = network or httpcore.AnyIOBackend()

    async def resolve(self, host: str, port: int) -> list[str]:
        """The allowed addresses. Raises UnreachableError if there is none, or if one is not public."""
        try:
            found = [ip_address(text) for text in await self._lookup(host, port)]
        except (OSError, UnicodeError):
            raise UnreachableError("its host name cannot be resolved") from None
        if not found:
            raise UnreachableError("its host name has no address")
        if not self._allow_private and not all(map(is_public, found)):
            raise UnreachableError("its host leads to a private, local or reserved address")
        return [str(address) for address in found[:MAX_ADDRESSES]]

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """A connection to a checked address. Addresses are tried in turn and share `timeout`."""
        *others, last = await self.resolve(host, port)
        share = None if timeout is None else timeout / (len(others) + 1)
        for address in others:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return _Stream(await self._network.connect_tcp(address, port, share))
        return _Stream(await self._network.connect_tcp(last, port, share))


class _Stream(httpcore.AsyncNetworkStream):
    """A connection that is closed if its handshake is cancelled; httpcore would leave it open."""

    def __init__(self, plain: httpcore.AsyncNetworkStream) -> None:
        self._plain = plain

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        try:
            return await self._plain.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await self._plain.aclose()
            raise

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._plain.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._plain.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._plain.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._plain.get_extra_info(info)
