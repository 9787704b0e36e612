"""Builds httpx requests for both faces, and classifies the failures of httpx."""

from __future__ import annotations

import httpx

from gapless._call import Request
from gapless._config import Config
from gapless._retry import NoReply, Reply

LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=20)
"""The most connections. Every open subscription holds one; beyond, a call waits its timeout and fails."""


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
