"""Routes for all definitions as one document: to keep, to compare, or to import elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime

from app.api.definition_bodies import MAX_DEFINITIONS_BYTES, parse_definitions
from app.api.definition_encoding import encode_changes, encode_definitions
from app.http.body import read_json
from app.http.parameters import DryRunQuery
from app.http.request import Answer, Plain, Request
from app.message.tags import etag, if_match
from subscriptions.engine.durable.announcing import AnnouncingPolicies


async def export_definitions(request: Plain, policies: AnnouncingPolicies) -> Answer:
    """Export all definitions: channels, subscriptions and policies with their own settings, without the
    secrets of webhooks."""
    defined = await policies.port.definitions(request.namespace)
    return Answer(encode_definitions(defined), headers=etag(defined.tag))


async def import_definitions(
    request: Request[DryRunQuery], policies: AnnouncingPolicies, allow_private: bool
) -> Answer:
    """Import definitions, all of them or none. Missing ones are created, different ones are changed, and none
    is deleted."""
    tags, dry_run = if_match(request.headers), request.query.dry_run
    raw = await read_json(request, MAX_DEFINITIONS_BYTES)
    wanted = parse_definitions(raw, datetime.now(UTC), allow_private=allow_private)
    changes, unchanged = await policies.apply(request.namespace, wanted, dry_run=dry_run, if_match=tags)
    return Answer(encode_changes(changes, unchanged, dry_run=dry_run))
