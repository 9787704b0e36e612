"""Everything that was defined, as one document: to keep, to compare, to bring elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from app.routes.bodies import JSON, read_json
from app.routes.parameters import only
from app.schemas import answers, schema, takes
from app.wire.definitions import MAX_DEFINITIONS_BYTES, parse_definitions
from app.wire.described import encode_changes, encode_definitions
from app.wire.tags import etag, if_match
from app.wiring import Service


def router(service: Callable[[], Service]) -> APIRouter:
    """The routes, over whatever service is running."""
    routes = APIRouter(tags=["definitions"])

    @routes.get("/v1/definitions", responses=answers("The document.", schema("Definitions")))
    async def export(request: Request) -> Response:
        """Channels, subscriptions and policies with their own settings, but for the secrets of webhooks."""
        only(request, ())
        running = service()
        defined = await running.policies.definitions(running.namespace)
        return Response(encode_definitions(defined), headers=etag(defined.tag), media_type=JSON)

    @routes.post(
        "/v1/definitions",
        responses=answers("What changed, or would change.", schema("Changes")),
        openapi_extra=takes("Definitions"),
    )
    async def apply(
        request: Request,
        dry_run: Annotated[bool, Query(description="Only say what would change.")] = False,
    ) -> Response:
        """Add and change until all of the document is there; all of it or nothing. Never deletes."""
        only(request, ("dry_run",))
        tags = if_match(request)
        running, raw = service(), await read_json(request, MAX_DEFINITIONS_BYTES)
        allow_private = running.settings.webhook_allow_private
        wanted = parse_definitions(raw, datetime.now(UTC), allow_private=allow_private)
        changes, unchanged = await running.policies.apply(
            running.namespace, wanted, dry_run=dry_run, if_match=tags
        )
        return Response(encode_changes(changes, unchanged, dry_run=dry_run), media_type=JSON)

    return routes
