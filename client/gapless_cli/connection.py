"""A client for one command. It gives up early, with a readable message; a program would retry longer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gapless_cli.failures import Exit, Failure, failure_from, usage

if TYPE_CHECKING:
    from gapless import Client

ATTEMPTS = 4
PATIENCE_S = 10.0
"""A restarting server is back within this time; a person does not want to wait longer for an error."""
PROBE_TIMEOUT_S = 5.0


@contextmanager
def connected(url: str) -> Iterator[Client]:
    """A client of the server at `url`. Its errors inside the block become a `Failure`."""
    from gapless import Client, GaplessError, RetryPolicy

    policy = RetryPolicy(attempts=ATTEMPTS, total_seconds=PATIENCE_S, base_seconds=0.2, cap_seconds=2.0)
    try:
        with Client(url, retry=policy) as client:
            yield client
    except GaplessError as error:
        raise failure_from(error, url) from error
    except ValueError as error:  # A name or an option that no request can carry.
        raise usage(str(error)) from error


def require_server(url: str) -> None:
    """Raises `Failure` if no server answers. A command that reconnects for ever would hide that. It is called
    in the block of `connected`, which refuses what is no address."""
    import httpx

    try:
        httpx.get(url.rstrip("/") + "/healthz", timeout=PROBE_TIMEOUT_S)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise usage(f"not the address of a service: {url!r} ({error})") from error
    except httpx.RequestError as error:
        reason = f"{type(error).__name__}: {error}"
        text = f"no server answers at {url} ({reason}): start one with gapless serve, or give --url"
        raise Failure(text, Exit.UNREACHABLE) from error
