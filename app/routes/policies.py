"""Policies: settings for everything a pattern matches."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, Request, Response

from app.routes.bodies import JSON, read_json
from app.routes.parameters import Name, only
from app.schemas import answers, schema, takes
from app.wire.definitions import parse_policy
from app.wire.described import encode_policies, encode_policy
from app.wire.tags import etag, if_absent, if_match
from app.wiring import Service
from subscriptions.domain.names import check_channel


def router(service: Callable[[], Service]) -> APIRouter:
    """The routes, over whatever service is running."""
    routes = APIRouter(tags=["policies"])
    one = answers("The policy.", schema("Policy"))
    made = answers("The policy was made.", schema("Policy"), 201)

    @routes.get("/v1/policies", responses=answers("All policies, by name.", schema("Policies")))
    async def list_policies(request: Request) -> Response:
        """All policies."""
        only(request, ())
        running = service()
        return Response(encode_policies(await running.policies.all(running.namespace)), media_type=JSON)

    @routes.get("/v1/policies/{name}", responses=one)
    async def get_policy(request: Request, name: Name) -> Response:
        """One policy."""
        only(request, ())
        running = service()
        found = await running.policies.get(running.namespace, _checked(name))
        return Response(encode_policy(found), headers=etag(found.tag), media_type=JSON)

    @routes.put("/v1/policies/{name}", responses=one | made, openapi_extra=takes("PolicyDefinition"))
    async def put_policy(request: Request, name: Name) -> Response:
        """Make or replace a policy. It is in force for every decision after the answer."""
        only(request, ())
        tags, absent = if_match(request), if_absent(request)
        running, policy = service(), parse_policy(_checked(name), await read_json(request))
        was_made, tag = await running.policies.put(running.namespace, policy, if_match=tags, if_absent=absent)
        return Response(encode_policy(policy), 201 if was_made else 200, etag(tag), JSON)

    @routes.delete("/v1/policies/{name}", status_code=204)
    async def delete_policy(request: Request, name: Name) -> Response:
        """Delete a policy; what it gave falls back to other policies or the defaults."""
        only(request, ())
        running, tags = service(), if_match(request)
        await running.policies.delete(running.namespace, _checked(name), if_match=tags)
        return Response(status_code=204)

    return routes


def _checked(name: str) -> str:
    return check_channel(name, "name")
