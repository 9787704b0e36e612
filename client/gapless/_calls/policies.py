"""Calls for policies, and for all definitions as one document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gapless._call import (
    JSON,
    Call,
    Request,
    asking,
    changing,
    json_of,
    matching,
    params_from,
    path,
    tagged,
    telling,
)
from gapless._errors import ProtocolError
from gapless._retry import Reply

AppliesTo = Literal["channels", "subscriptions"]
"""The kind of thing that a policy is about."""

Definitions = Mapping[str, Any]
"""Channels, subscriptions and policies with their own settings: the JSON document of `/v1/definitions`."""


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


class Exported(dict[str, Any]):
    """The definitions as a document. `etag` is for `if_match`; each change of a definition changes it."""

    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """The change that an import makes to one thing. `before` is None if it did not exist."""

    kind: str
    name: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import, or of its `dry_run`. Things are named `kind:name`."""

    dry_run: bool
    created: tuple[str, ...]
    updated: tuple[str, ...]
    unchanged: int
    diff: tuple[Change, ...]


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


def listed() -> Call[list[Policy]]:
    """All policies, by name."""

    def decode(answer: Any) -> list[Policy]:
        if not isinstance(answer, dict) or not isinstance(answer.get("policies"), list):
            raise ProtocolError(f"not a list of policies: {answer!r:.200}")
        return [policy_from(raw) for raw in answer["policies"]]

    return asking("GET", path("policies"), decode)


def get(name: str) -> Call[Policy]:
    """One policy."""
    return tagged(asking("GET", path("policies", name), policy_from))


def delete(name: str, if_match: str | None = None) -> Call[None]:
    """Removes the policy."""
    return telling("DELETE", path("policies", name), headers=matching(if_match))


def export() -> Call[Exported]:
    """All definitions."""

    def decode(reply: Reply) -> Exported:
        answer = json_of(reply)
        if not isinstance(answer, dict) or "version" not in answer:
            raise ProtocolError(f"not the definitions: {answer!r:.200}")
        document = Exported(answer)
        document.etag = reply.headers.get("etag")
        return document

    return Call(Request("GET", path("definitions"), headers=JSON), decode)


def import_(document: Definitions, dry_run: bool, if_match: str | None = None) -> Call[Imported]:
    """Adds and changes definitions until they match the document. A repetition reports no change."""
    params = params_from({"dry_run": "true" if dry_run else "false"})
    return changing("POST", path("definitions"), _imported, dict(document), if_match, params)


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
