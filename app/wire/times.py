"""Times on the wire: RFC 3339 in UTC, with microseconds."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache


def rfc3339(at_us: int) -> bytes:
    """Microseconds since the Unix epoch as text: `2026-11-20T12:00:00.123456Z`."""
    seconds, microseconds = divmod(at_us, 1_000_000)
    return b"%b.%06dZ" % (_to_the_second(seconds), microseconds)


@lru_cache(maxsize=4096)
def _to_the_second(seconds: int) -> bytes:
    # Messages written or read together share their second, so nearly every call hits this cache.
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S").encode()
