"""What a live reader may select."""

from __future__ import annotations

from collections.abc import Sequence

from app.message.limits import check_key, check_type
from subscriptions.domain.pattern import check_budget, check_pattern, is_pattern
from subscriptions.domain.selection import Selection, select


def read_selection(
    namespace: str, channels: Sequence[str], types: Sequence[str], keys: Sequence[str]
) -> Selection:
    """The selection of channels, some of them patterns, and of types and keys. Raises `invalid_request`."""
    for channel in channels:
        check_pattern(channel)
    check_budget(channels, "channel")
    return select(
        namespace,
        [channel for channel in channels if not is_pattern(channel)],
        [channel for channel in channels if is_pattern(channel)],
        list(map(check_type, types)),
        list(map(check_key, keys)),
    )
