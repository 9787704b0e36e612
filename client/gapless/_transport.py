"""The httpx clients of both faces: their requests, their failures, and the process that they belong to."""

from __future__ import annotations

import ssl
import threading
import urllib.request

import httpx

from gapless._call import Request
from gapless._config import Config
from gapless._forks import OneProcess, disconnect, leave
from gapless._retry import NoReply, Reply

LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=20)
"""The most connections. Every open subscription holds one; beyond, a call waits its timeout and fails."""


def _trust(base_url: str) -> ssl.SSLContext:
    """What is trusted over TLS. To load the usual certificates takes longer than many a call, and over http
    nobody but a proxy needs them; without them, no server is trusted."""
    proxies = urllib.request.getproxies().values()
    if any(url.lower().startswith("https:") for url in (base_url, *proxies)):
        return httpx.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class AsyncPool(OneProcess):
    """An `httpx.AsyncClient`: the caller's, or one of its own for this address, which it closes."""

    def __init__(self, given: httpx.AsyncClient | None, base_url: str) -> None:
        self._given = given
        self._http = given or httpx.AsyncClient(verify=_trust(base_url), limits=LIMITS)
        super().__init__()

    @property
    def http(self) -> httpx.AsyncClient:
        """The client to send with. Raises `RuntimeError` in a forked child, if the parent used it."""
        self._use()
        return self._http

    @property
    def closed(self) -> bool:
        """Whether nothing more can be sent."""
        return self._http.is_closed

    async def aclose(self) -> None:
        """Closes its own client, unless that is the parent's."""
        if self._given is None and not self._foreign:
            await self._http.aclose()


class Pool(OneProcess):
    """An `httpx.Client`: the caller's, or one of its own for this address, which it closes. A forked child
    has its own."""

    def __init__(self, given: httpx.Client | None, base_url: str) -> None:
        self._given = given
        self._base_url = base_url
        self._http = given or self._made()
        self._closed = False
        self._renewing = threading.Lock()
        super().__init__()

    @property
    def http(self) -> httpx.Client:
        """The client to send with. Raises `RuntimeError` for the caller's, if a parent process used it."""
        if self._given is None and self._foreign:
            with self._renewing:
                if self._foreign:
                    own, closed = self._made(), self.closed
                    if closed:
                        own.close()
                    self._http, self._foreign = own, False
        self._use()
        return self._http

    @property
    def closed(self) -> bool:
        """Whether nothing more can be sent."""
        return self._closed or self._http.is_closed

    def close(self) -> None:
        """Closes its own client, unless that is the parent's."""
        if self._given is None:
            with self._renewing:
                self._closed = True
                if not self._foreign:
                    self._http.close()

    def _made(self) -> httpx.Client:
        return httpx.Client(verify=_trust(self._base_url), limits=LIMITS)

    def _after_fork(self) -> None:
        super()._after_fork()
        self._renewing = threading.Lock()


def leave_response(response: httpx.Response, chunks: object) -> None:
    """In a forked child: lets go of an answer that the parent reads, unnoticed by the peer."""
    network = response.extensions.get("network_stream")
    disconnect(None if network is None else network.get_extra_info("socket"))
    leave(response, chunks)


def build(http: httpx.Client | httpx.AsyncClient, config: Config, request: Request) -> httpx.Request:
    """The request as httpx sends it, with credentials and timeouts."""
    patience = request.silence_seconds or config.timeout_seconds + request.held_seconds
    return http.build_request(
        request.method,
        config.base_url + request.path,
        params=list(request.params),
        headers={**config.headers(), **request.headers},
        content=request.content,
        timeout=httpx.Timeout(config.timeout_seconds, read=patience),
    )


def head_of(response: httpx.Response) -> Reply:
    """Status and headers of an answer whose body was not read yet."""
    return Reply(response.status_code, {name.lower(): value for name, value in response.headers.items()})


def reply_of(response: httpx.Response) -> Reply:
    """An answer whose body was read."""
    head = head_of(response)
    return Reply(head.status, head.headers, response.content)


def no_reply(error: httpx.RequestError) -> NoReply:
    """The outcome of a request that failed in httpx."""
    never_sent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
    # These say that the request itself cannot be sent, such as a line break in the token.
    hopeless = isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError)
    reason = f"{type(error).__name__}: {error}".removesuffix(": ")
    return NoReply(reason, sent=not (never_sent or hopeless), passing=not hopeless, cause=error)
