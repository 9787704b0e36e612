"""Grants as JSON: of keys and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from subscriptions.domain.errors import invalid
from subscriptions.domain.names import MAX_NAME_CHARACTERS
from subscriptions.domain.pattern import check_budget, check_pattern
from subscriptions.domain.principal import Action, Grant, Noun

MAX_GRANTS: Final = 64
MAX_PATTERNS: Final = 100
_Pattern = Annotated[str, Meta(extra_json_schema={"minLength": 1, "maxLength": MAX_NAME_CHARACTERS})]
_Patterns = Annotated[list[_Pattern], Meta(max_length=MAX_PATTERNS)]


class GrantDocument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Actions on all channels and subscriptions whose names one of the patterns matches."""

    actions: Annotated[list[Action], Meta(min_length=1, max_length=len(Action))]
    channels: _Patterns = []
    subscriptions: _Patterns = []


def read_grants(documents: Sequence[GrantDocument]) -> tuple[Grant, ...]:
    """Checked grants. Raises `invalid_request`."""
    grants = []
    for number, one in enumerate(documents):
        for noun in ("channels", "subscriptions"):
            for place, pattern in enumerate(getattr(one, noun)):
                check_pattern(pattern, f"grants[{number}].{noun}[{place}]")
        if not one.channels and not one.subscriptions:
            raise invalid(f"grants[{number}]", "names no channels and no subscriptions")
        grants.append(Grant(frozenset(one.actions), tuple(one.channels), tuple(one.subscriptions)))
    patterns = [pattern for grant in grants for noun in Noun for pattern in grant.patterns(noun)]
    if len(patterns) > MAX_PATTERNS:
        raise invalid("grants", f"have more than {MAX_PATTERNS} patterns together")
    check_budget(patterns, "grants")
    return tuple(grants)


def grant_documents(grants: tuple[Grant, ...] | None) -> list[GrantDocument] | None:
    """Grants as they are shown; None: everything."""
    if grants is None:
        return None
    return [
        GrantDocument(
            actions=sorted(grant.actions),
            channels=list(grant.channels),
            subscriptions=list(grant.subscriptions),
        )
        for grant in grants
    ]
