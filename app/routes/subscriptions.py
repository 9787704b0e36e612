"""Durable subscriptions as definitions: made, looked at, changed, moved, stopped and deleted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Query, Request, Response

from app.routes.bodies import JSON, read_json
from app.routes.parameters import IdCursor, Limit, Name, only
from app.schemas import answers, schema, takes
from app.wire.definitions import parse_binding, parse_patch, parse_seek, parse_subscription
from app.wire.deliveries import encode_looked
from app.wire.described import encode_length, encode_subscription, encode_try
from app.wire.tags import etag, if_absent, if_match
from app.wiring import Service
from subscriptions.domain.delivery import State, Subscription
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.names import check_channel, is_channel
from subscriptions.domain.pattern import check_pattern, to_regex


def router(service: Callable[[], Service]) -> APIRouter:
    """The routes, over whatever service is running."""
    routes = APIRouter(tags=["subscriptions"])
    _reading(routes, service)
    _definitions(routes, service)
    _bindings(routes, service)
    _moves(routes, service)
    _looks(routes, service)
    return routes


def _reading(routes: APIRouter, service: Callable[[], Service]) -> None:
    @routes.get("/v1/subscriptions", responses=_PAGE)
    async def list_subscriptions(
        request: Request,
        pattern: Annotated[str | None, Query(max_length=255, description="Only matching names.")] = None,
        limit: Limit = 100,
        cursor: Annotated[str, Query(max_length=255, description="Where the page before ended.")] = "",
    ) -> Response:
        """Subscriptions by name. `cursor` goes into the next request; it is null on the last page."""
        only(request, ("pattern", "limit", "cursor"))
        if cursor and not is_channel(cursor):
            raise GaplessError(Code.INVALID_REQUEST, "cursor: is not one of this list", status=400)
        regex = None if pattern is None else to_regex(check_pattern(pattern, "pattern"))
        running = service()
        found = await running.subscriptions.page(running.namespace, regex, cursor, limit + 1)
        page = found[:limit]
        answer = {
            "subscriptions": [msgspec.Raw(encode_subscription(each)) for each in page],
            "has_more": len(found) > limit,
            "cursor": page[-1].name if len(found) > limit else None,
        }
        return Response(msgspec.json.encode(answer), media_type=JSON)

    @routes.get("/v1/subscriptions/{name}", responses=_ONE)
    async def get_subscription(request: Request, name: Name) -> Response:
        """A subscription: what it is, and where it stands."""
        only(request, ())
        running = service()
        return _answer(await running.subscriptions.get(running.namespace, _checked(name), stats=True))

    @routes.get(
        "/v1/subscriptions/{name}/length", responses=answers("How many.", schema("SubscriptionLength"))
    )
    async def get_length(request: Request, name: Name) -> Response:
        """How many messages it holds, without the cost of its full statistics."""
        only(request, ())
        running = service()
        length = await running.subscriptions.length(running.namespace, _checked(name))
        return Response(encode_length(length), media_type=JSON)


def _definitions(routes: APIRouter, service: Callable[[], Service]) -> None:
    @routes.put(
        "/v1/subscriptions/{name}", responses=_ONE | _MADE, openapi_extra=takes("SubscriptionDefinition")
    )
    async def put_subscription(request: Request, name: Name) -> Response:
        """Make a subscription. 200 when the very same is there already, 409 when another has the name; with
        If-Match that is replaced, and with `If-None-Match: *` nothing may be there."""
        only(request, ())
        tags, absent = if_match(request), if_absent(request)
        running, raw = service(), await read_json(request)
        definition = parse_subscription(
            _checked(name), raw, datetime.now(UTC), allow_private=running.settings.webhook_allow_private
        )
        made, was_made = await running.subscriptions.put(
            running.namespace, definition, if_match=tags, if_absent=absent
        )
        return _answer(made, 201 if was_made else 200)

    @routes.patch("/v1/subscriptions/{name}", responses=_ONE, openapi_extra=takes("SubscriptionChange"))
    async def patch_subscription(request: Request, name: Name) -> Response:
        """Change some members; null clears a setting, so that a policy or the default applies again."""
        only(request, ())
        tags = if_match(request)
        running, raw = service(), await read_json(request)
        channels, settings = parse_patch(
            _checked(name), raw, allow_private=running.settings.webhook_allow_private
        )
        changed = await running.subscriptions.patch(
            running.namespace, name, channels, settings, if_match=tags
        )
        return _answer(changed)

    @routes.delete("/v1/subscriptions/{name}", status_code=204)
    async def delete_subscription(
        request: Request,
        name: Name,
        if_empty: Annotated[bool, Query(description="409 where it holds messages.")] = False,
        if_unused: Annotated[bool, Query(description="409 where it has members.")] = False,
    ) -> Response:
        """Delete a subscription, with everything under way in it. Its dead letters stay."""
        only(request, ("if_empty", "if_unused"))
        running, tags = service(), if_match(request)
        await running.subscriptions.delete(
            running.namespace, _checked(name), if_match=tags, if_empty=if_empty, if_unused=if_unused
        )
        return Response(status_code=204)


def _bindings(routes: APIRouter, service: Callable[[], Service]) -> None:
    @routes.post("/v1/subscriptions/{name}/bind", responses=_ONE, openapi_extra=takes("Binding"))
    async def bind(request: Request, name: Name) -> Response:
        """Read these channels or patterns too. What is bound already stays bound."""
        return await answer(request, name, bound=True)

    @routes.post("/v1/subscriptions/{name}/unbind", responses=_ONE, openapi_extra=takes("Binding"))
    async def unbind(request: Request, name: Name) -> Response:
        """Read these channels or patterns no more. One at least has to stay."""
        return await answer(request, name, bound=False)

    async def answer(request: Request, name: str, *, bound: bool) -> Response:
        only(request, ())
        tags = if_match(request)
        running, raw = service(), await read_json(request)
        channels = parse_binding(raw)
        changed = await running.subscriptions.bind(
            running.namespace, _checked(name), channels, bound, if_match=tags
        )
        return _answer(changed)


def _moves(routes: APIRouter, service: Callable[[], Service]) -> None:
    @routes.post("/v1/subscriptions/{name}/seek", responses=_ONE, openapi_extra=takes("Seek"))
    async def seek(
        request: Request,
        name: Name,
        dry_run: Annotated[bool, Query(description="Only say what it would lead to.")] = False,
    ) -> Response:
        """Go on from elsewhere. What is in flight, delayed or waiting is forgotten; dead letters stay."""
        only(request, ("dry_run",))
        running, raw = service(), await read_json(request)
        to = parse_seek(raw, datetime.now(UTC))
        if dry_run:
            moved, before = await running.subscriptions.try_seek(running.namespace, _checked(name), to)
            return Response(encode_try(moved, before), media_type=JSON)
        return _answer(await running.subscriptions.seek(running.namespace, _checked(name), to))

    @routes.post("/v1/subscriptions/{name}/purge", responses=answers("How many.", schema("Purged")))
    async def purge(request: Request, name: Name) -> Response:
        """Remove what is ready, delayed or waiting, for good. What is in flight stays; the log keeps all."""
        only(request, ())
        running = service()
        running.require_ready()
        purged = await running.subscriptions.purge(running.namespace, _checked(name))
        return Response(b'{"purged":%d}' % purged, media_type=JSON)

    @routes.post("/v1/subscriptions/{name}/pause", responses=_ONE)
    async def pause(request: Request, name: Name) -> Response:
        """Hand out nothing until resumed. Leases, expiry and dead letters go on."""
        only(request, ())
        running = service()
        return _answer(await running.subscriptions.pause(running.namespace, _checked(name), True))

    @routes.post("/v1/subscriptions/{name}/resume", responses=_ONE)
    async def resume(request: Request, name: Name) -> Response:
        """Hand out again."""
        only(request, ())
        running = service()
        return _answer(await running.subscriptions.pause(running.namespace, _checked(name), False))


def _looks(routes: APIRouter, service: Callable[[], Service]) -> None:
    @routes.get("/v1/subscriptions/{name}/messages", responses=_OUTSTANDING)
    async def look(
        request: Request,
        name: Name,
        state: Annotated[State | None, Query(description="Only in this state.")] = None,
        limit: Limit = 100,
        cursor: IdCursor = 0,
    ) -> Response:
        """What is not settled, by id: leases nothing, counts no attempt. `cursor` goes into the next one."""
        only(request, ("state", "limit", "cursor"))
        running = service()
        looked = await running.consumers.look(running.namespace, _checked(name), state, cursor, limit)
        return Response(encode_looked(looked), media_type=JSON)


def _checked(name: str) -> str:
    return check_channel(name, "name")


def _answer(subscription: Subscription, status: int = 200) -> Response:
    return Response(encode_subscription(subscription), status, etag(subscription.tag), JSON)


_ONE: Final = answers("The subscription.", schema("Subscription"))
_MADE: Final = answers("The subscription was made.", schema("Subscription"), 201)
_OUTSTANDING: Final = answers("A page of messages.", schema("OutstandingPage"))
_PAGE: Final = answers("A page of subscriptions.", schema("SubscriptionPage"))
