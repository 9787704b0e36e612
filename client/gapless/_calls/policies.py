"""Calls for policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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
from gapless._errors import ProtocolError

AppliesTo = Literal["channels", "subscriptions"]
"""The kind of thing that a policy is about."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings for all channels or subscriptions whose names match `pattern`.

    The own setting of a channel or subscription overrides a policy. Among policies the higher `priority`
    wins, then the name that sorts first. `etag`, for `if_match`, is set when one policy was asked for; each
    change of the policy changes it.
    """

    name: str
    pattern: str
    applies_to: AppliesTo
    priority: int
    definition: Mapping[str, Any]
    etag: str | None = field(default=None, compare=False)


def put(
    name: str,
    pattern: str,
    applies_to: AppliesTo,
    definition: Mapping[str, Any],
    priority: int,
    if_match: str | None = None,
) -> Call[Policy]:
    """Creates or replaces the policy."""
    body = {
        "pattern": pattern,
        "applies_to": applies_to,
        "priority": priority,
        "definition": dict(definition),
    }
    return tagged(changing("PUT", path("policies", name), policy_from, body, if_match))


def listed() -> Call[Slice[Policy]]:
    """All policies, by name."""

    def decode(answer: Any) -> Slice[Policy]:
        if not isinstance(answer, dict) or not isinstance(answer.get("policies"), list):
            raise ProtocolError(f"not a list of policies: {answer!r:.200}")
        return Slice(tuple(policy_from(raw) for raw in answer["policies"]), None)

    return asking("GET", path("policies"), decode)


def get(name: str) -> Call[Policy]:
    """One policy."""
    return tagged(asking("GET", path("policies", name), policy_from))


def delete(name: str, if_match: str | None = None) -> Call[None]:
    """Removes the policy."""
    return telling("DELETE", path("policies", name), headers=matching(if_match))


def policy_from(raw: Any) -> Policy:
    """A `Policy` from its JSON object. Raises `ProtocolError`."""
    try:
        priority = int(raw.get("priority") or 0)
        return Policy(raw["name"], raw["pattern"], raw["applies_to"], priority, raw["definition"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not a policy: {raw!r:.200}") from error
