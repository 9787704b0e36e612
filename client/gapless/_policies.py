"""Policies, and all that is defined as one document, as calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gapless._call import SENDING, Call, Request, asking, json_body, json_of, params_from, path, telling
from gapless._errors import ProtocolError

AppliesTo = Literal["channels", "subscriptions"]
"""What a policy is about."""

Definitions = Mapping[str, Any]
"""Channels, subscriptions and policies with their own settings: the JSON document of `/v1/definitions`."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings for all channels or subscriptions whose names match `pattern`.

    A thing's own setting beats a policy's, the higher priority the lower, then the lesser name.
    """

    name: str
    pattern: str
    applies_to: AppliesTo
    priority: int
    definition: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """What an import changes of one thing. `before` is None for one that was not there."""

    kind: str
    name: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did, or would do if it is a `dry_run`. Things are named `kind:name`."""

    dry_run: bool
    created: tuple[str, ...]
    updated: tuple[str, ...]
    unchanged: int
    diff: tuple[Change, ...]


def put(
    name: str, pattern: str, applies_to: AppliesTo, definition: Mapping[str, Any], priority: int
) -> Call[Policy]:
    """Makes the policy, or replaces it."""
    body = {
        "pattern": pattern,
        "applies_to": applies_to,
        "priority": priority,
        "definition": dict(definition),
    }
    return asking("PUT", path("policies", name), policy_from, body)


def listed() -> Call[list[Policy]]:
    """All policies, by name."""

    def decode(answer: Any) -> list[Policy]:
        if not isinstance(answer, dict) or not isinstance(answer.get("policies"), list):
            raise ProtocolError(f"not a list of policies: {answer!r:.200}")
        return [policy_from(raw) for raw in answer["policies"]]

    return asking("GET", path("policies"), decode)


def get(name: str) -> Call[Policy]:
    """One policy."""
    return asking("GET", path("policies", name), policy_from)


def delete(name: str) -> Call[None]:
    """Removes the policy."""
    return telling("DELETE", path("policies", name))


def export() -> Call[dict[str, Any]]:
    """Everything that was defined."""

    def decode(answer: Any) -> dict[str, Any]:
        if not isinstance(answer, dict) or "version" not in answer:
            raise ProtocolError(f"not the definitions: {answer!r:.200}")
        return answer

    return asking("GET", path("definitions"), decode)


def import_(document: Definitions, dry_run: bool) -> Call[Imported]:
    """Adds and changes until all of the document is there. A repetition finds it there and says so."""
    params = params_from({"dry_run": "true" if dry_run else "false"})
    request = Request("POST", path("definitions"), params, SENDING, json_body(dict(document)))
    return Call(request, lambda reply: _imported(json_of(reply)))


def policy_from(raw: Any) -> Policy:
    """A `Policy` from its JSON object. Raises `ProtocolError`."""
    try:
        priority = int(raw.get("priority") or 0)
        return Policy(raw["name"], raw["pattern"], raw["applies_to"], priority, raw["definition"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(f"not a policy: {raw!r:.200}") from error


def _imported(raw: Any) -> Imported:
    try:
        return Imported(
            dry_run=bool(raw["dry_run"]),
            created=tuple(raw["created"]),
            updated=tuple(raw["updated"]),
            unchanged=int(raw["unchanged"]),
            diff=tuple(Change(one["kind"], one["name"], one["from"], one["to"]) for one in raw["diff"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"not the answer to an import: {raw!r:.200}") from error
