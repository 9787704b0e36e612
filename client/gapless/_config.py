"""The address of the service and the caller's credential."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from gapless._retry import RetryPolicy
from gapless._version import __version__

DEFAULT_URL = "http://127.0.0.1:8080"
USER_AGENT = f"gapless-python/{__version__}"

Token = str | Callable[[], str]
"""A bearer token, or a function that returns the current one; it is called before every request."""


@dataclass(frozen=True, slots=True)
class Config:
    """A client's settings. `timeout_seconds` limits each wait of one attempt: to connect, send or receive."""

    base_url: str
    token: Token | None = field(repr=False)
    timeout_seconds: float
    retry: RetryPolicy

    @classmethod
    def resolve(
        cls, base_url: str | None, token: Token | None, timeout_seconds: float, retry: RetryPolicy | None
    ) -> Config:
        """Replaces each None by the value of `GAPLESS_URL` or `GAPLESS_TOKEN`, or by the default.

        Raises `ValueError` when the address is not an http or https URL, or the timeout is not positive.
        """
        url = (base_url or os.environ.get("GAPLESS_URL") or DEFAULT_URL).rstrip("/")
        if "://" not in url:
            raise ValueError(f"the address {url!r} lacks its scheme: write http://{url}")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"not the address of a service: {url!r}")
        if timeout_seconds <= 0:
            raise ValueError("the timeout must be positive")
        return cls(
            url, token or os.environ.get("GAPLESS_TOKEN") or None, timeout_seconds, retry or RetryPolicy()
        )

    @property
    def renews_token(self) -> bool:
        """Whether the next request may carry another token than this one."""
        return callable(self.token)

    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        headers = {"User-Agent": USER_AGENT}
        token = self.token() if callable(self.token) else self.token
        if token:
            headers["Authorization"] = f"Bearer {token.strip()}"
        return headers
