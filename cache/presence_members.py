"""How clients of a channel are written in Redis, as members of a sorted set, all with the score 0; and how a
process says when it was heard and how many clients it has, as its score in another one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from prometheus_client import Counter

from subscriptions.domain.presence import ClientInfo

MEMBERS: Final = 500
"""Members that one command writes."""
COUNTS: Final = 2**20
"""A score is a second, of 31 bits, and a count as a fraction, of 20 bits. A double holds both exactly."""
LATEST_US: Final = 250_000_000_000_000_000
"""Times above this one cannot be shown."""

REFUSED = Counter("gapless_presence_refused_total", "Clients in Redis that no service has written.")

PROCESS = re.compile(rb"[0-9a-f]{16}")
_ID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MAX_USER_CHARACTERS = 1024
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[str | None, int]).decode

Command = tuple[bytes | str, ...]


def member(client: ClientInfo) -> bytes:
    """The id comes first, and nothing in it is below the zero that ends it, so members are in the order of
    ids."""
    return b"%b\0%b" % (client.id.encode(), _encode((client.user, client.connected_at_us)))


def client_of(member: object) -> ClientInfo | None:
    """None if no service has written this."""
    if isinstance(member, bytes):
        id_, _, rest = member.partition(b"\0")
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            user, connected_at_us = _decode(rest)
            if (
                _ID.fullmatch(id_)
                and 0 <= connected_at_us < LATEST_US
                and len(user or "") <= _MAX_USER_CHARACTERS
            ):
                return ClientInfo(id_.decode(), user, connected_at_us)
    REFUSED.inc()
    return None


def heard_with(now_s: float, count: int) -> str:
    """The score of a process that was heard now, with so many clients."""
    return repr(int(now_s) + min(count, COUNTS - 1) / COUNTS)


def said_with(score: object) -> int | None:
    """The number of clients in a score; None if it has none that is below the largest. Processes of older
    versions say only when they were heard."""
    with suppress(TypeError, ValueError):
        count = round(float(score) % 1 * COUNTS)  # type: ignore[arg-type]
        return count if 0 < count < COUNTS - 1 else None
    return None


def added(key: str, members: Sequence[bytes]) -> Command:
    return ("ZADD", key, *(part for member in members for part in ("0", member)))


def parts(items: list[Any], size: int = MEMBERS) -> Iterator[list[Any]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
