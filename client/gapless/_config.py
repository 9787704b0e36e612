"""The address of the service and the caller's credential."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
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
        """Replaces each None by the value of the environment, or by the default: `GAPLESS_URL`; and
        `GAPLESS_TOKEN`, or what the file `GAPLESS_TOKEN_FILE` holds at each request.

        Raises `ValueError` when the address is not an http or https URL, the timeout is not positive, or both
        a token and a file of one are set.
        """
        url = (base_url or os.environ.get("GAPLESS_URL") or DEFAULT_URL).rstrip("/")
        if "://" not in url:
            raise ValueError(f"the address {url!r} lacks its scheme: write http://{url}")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"not the address of a service: {url!r}")
        if timeout_seconds <= 0:
            raise ValueError("the timeout must be positive")
        return cls(url, token or _token_of_environment(), timeout_seconds, retry or RetryPolicy())

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


def _token_of_environment() -> Token | None:
    token, path = os.environ.get("GAPLESS_TOKEN"), os.environ.get("GAPLESS_TOKEN_FILE")
    if token and path:
        raise ValueError("set GAPLESS_TOKEN or GAPLESS_TOKEN_FILE, not both")
    return partial(_read_token, Path(path)) if path else token or None


def _read_token(path: Path) -> str:
    """What the file holds now. Raises `ValueError` if that is nothing: without a token somebody else asks."""
    try:
        text = path.read_text().strip()
    except OSError as error:
        raise ValueError(f"GAPLESS_TOKEN_FILE cannot be read: {error}") from error
    if not text:
        raise ValueError(f"GAPLESS_TOKEN_FILE is empty: {path}")
    return text
