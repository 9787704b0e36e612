"""Calls for channels."""

from __future__ import annotations

from typing import Any, Final

from gapless._call import (
    Call,
    Slice,
    asking,
    changing,
    matching,
    path,
    tagged,
    telling,
)
from gapless._calls.listing import listing
from gapless._models import Channel, Retention, channel_from


def listed(pattern: str | None, page_size: int) -> Call[Slice[Channel]]:
    """The channels whose names match the pattern."""
    return listing("/v1/channels", "channels", channel_from, {"pattern": pattern}, page_size)


class Unset:
    """The type of `UNSET`: leave this setting as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()


def get(name: str) -> Call[Channel]:
    """A channel's state and settings."""
    return tagged(asking("GET", path("channels", name), channel_from))


def put(
    name: str, retention: Retention | None, message_ttl: float | None, if_match: str | None = None
) -> Call[Channel]:
    """Creates the channel, or replaces its settings with exactly these."""
    body = {"retention": _retention(retention), "message_ttl": message_ttl}
    said = {name: value for name, value in body.items() if value is not None}
    return tagged(changing("PUT", path("channels", name), channel_from, said, if_match))


def update(
    name: str,
    retention: Retention | Unset | None,
    message_ttl: float | Unset | None,
    if_match: str | None = None,
) -> Call[Channel]:
    """Changes the given settings; None removes a setting."""
    body: dict[str, Any] = {}
    if not isinstance(retention, Unset):
        body["retention"] = _retention(retention)
    if not isinstance(message_ttl, Unset):
        body["message_ttl"] = message_ttl
    return tagged(changing("PATCH", path("channels", name), channel_from, body, if_match))


def delete(name: str, if_match: str | None = None) -> Call[None]:
    """Removes the channel and its messages."""
    return telling("DELETE", path("channels", name), headers=matching(if_match))


def _retention(retention: Retention | None) -> dict[str, Any] | None:
    if retention is None:
        return None
    limits = {"max_age": retention.max_age, "max_messages": retention.max_messages}
    return {name: value for name, value in limits.items() if value is not None}
