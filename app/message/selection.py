"""What a live reader may select."""

from __future__ import annotations

from collections.abc import Sequence

from app.message.limits import check_key, check_type
from subscriptions.domain.pattern import check_budget, check_pattern, is_pattern
from subscriptions.domain.principal import Action, Noun, Principal
from subscriptions.domain.selection import Changes, Selection, select


def read_selection(
    principal: Principal,
    channels: Sequence[str],
    types: Sequence[str],
    keys: Sequence[str],
    changes: Changes = "all",
    *,
    markers: bool = False,
) -> Selection:
    """The selection of channels, some of them patterns, and of types, keys, changes and markers. Of a pattern
    it has what the principal may read. Raises `invalid_request` and `forbidden`."""
    for channel in channels:
        check_pattern(channel)
    names = [channel for channel in channels if not is_pattern(channel)]
    principal.require((Action.SUBSCRIBE,), Noun.CHANNEL, names)
    asked = [channel for channel in channels if is_pattern(channel)]
    # Each stays a pattern, also where one name is left of it: the reader asked for no name.
    patterns = principal.narrow((Action.SUBSCRIBE,), Noun.CHANNEL, asked)
    check_budget(patterns, "channel")
    return select(
        principal.namespace,
        names,
        patterns,
        list(map(check_type, types)),
        list(map(check_key, keys)),
        changes,
        markers=markers,
    )
