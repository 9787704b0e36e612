"""The rules for channel names."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from subscriptions.domain.errors import invalid

MAX_NAME_CHARACTERS: Final = 255
NAME_PART: Final = "[A-Za-z0-9_~:@-]+"
"""One token of a name, as a regular expression; tokens are joined by dots."""

_NAME: Final = re.compile(rf"{NAME_PART}(?:\.{NAME_PART})*")
_RULE: Final = "must be tokens of letters, digits and _ ~ : @ - joined by dots"


def is_channel(name: str) -> bool:
    """Whether `name` may name a channel. Only ASCII passes, so two names that look the same are the same."""
    return len(name) <= MAX_NAME_CHARACTERS and _is_well_formed(name)


@lru_cache(maxsize=4096)
def _is_well_formed(name: str) -> bool:
    # Each request asks, mostly about the same few thousand names.
    return _NAME.fullmatch(name) is not None


def check_channel(name: str, field: str = "channel") -> str:
    """Return `name`, or raise `invalid_request` about `field` with the rule that it breaks."""
    if is_channel(name):
        return name
    if not name:
        raise invalid(field, "must not be empty")
    if len(name) > MAX_NAME_CHARACTERS:
        raise invalid(field, f"is longer than {MAX_NAME_CHARACTERS} characters")
    raise invalid(field, _RULE)
