"""Calls for all definitions as one document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gapless._call import (
    JSON,
    Call,
    Request,
    changing,
    json_of,
    params_from,
    path,
)
from gapless._errors import ProtocolError
from gapless._retry import Reply

Document = Mapping[str, Any]
"""Channels, subscriptions and policies with their own settings: the JSON document of `/v1/definitions`."""


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


def import_(document: Document, dry_run: bool, if_match: str | None = None) -> Call[Imported]:
    """Adds and changes definitions until they match the document. A repetition reports no change."""
    params = params_from({"dry_run": "true" if dry_run else "false"})
    return changing("POST", path("definitions"), _imported, dict(document), if_match, params)


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
