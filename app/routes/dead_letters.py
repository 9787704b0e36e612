"""Dead letters: looked at, given back, deleted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response

from app.routes.bodies import JSON, read_json
from app.routes.parameters import Digits, IdCursor, Limit, only
from app.schemas import answers, schema, takes
from app.wire.dead_letters import parse_purge, parse_replay
from app.wire.deliveries import encode_dead_letter, encode_page
from app.wiring import Service
from subscriptions.domain.delivery import DeadLetterFilter, Reason
from subscriptions.domain.model import MAX_ID
from subscriptions.domain.names import check_channel

DeadLetterId = Annotated[int, Path(ge=0, le=MAX_ID, description="Dead letter id."), Digits]


def router(service: Callable[[], Service]) -> APIRouter:
    """The routes, over whatever service is running."""
    routes = APIRouter(tags=["dead letters"])
    _one(routes, service)
    _many(routes, service)
    return routes


def _one(routes: APIRouter, service: Callable[[], Service]) -> None:
    @routes.get("/v1/dead-letters/{dead_letter_id}", responses=answers("The entry.", schema("DeadLetter")))
    async def get_dead_letter(request: Request, dead_letter_id: DeadLetterId) -> Response:
        """One dead letter."""
        only(request, ())
        running = service()
        found = await running.dead_letters.get(running.namespace, dead_letter_id)
        return Response(encode_dead_letter(found), media_type=JSON)

    @routes.delete("/v1/dead-letters/{dead_letter_id}", status_code=204)
    async def delete_dead_letter(request: Request, dead_letter_id: DeadLetterId) -> Response:
        """Delete it for good, and its copy of the message."""
        only(request, ())
        running = service()
        await running.dead_letters.delete(running.namespace, dead_letter_id)
        return Response(status_code=204)

    @routes.post(
        "/v1/dead-letters/{dead_letter_id}/replay", responses=answers("Given back.", schema("Replayed"))
    )
    async def replay(request: Request, dead_letter_id: DeadLetterId) -> Response:
        """Give it back to the subscription that failed it. Of two replays one wins, the other gets 404."""
        only(request, ())
        running = service()
        running.require_ready()
        name, message_id = await running.dead_letters.replay(running.namespace, dead_letter_id)
        answer = {"id": dead_letter_id, "subscription": name, "message_id": message_id}
        return Response(msgspec.json.encode(answer), media_type=JSON)


def _many(routes: APIRouter, service: Callable[[], Service]) -> None:
    @routes.get("/v1/dead-letters", responses=answers("A page.", schema("DeadLetterPage")))
    async def list_dead_letters(
        request: Request,
        subscription: Annotated[str | None, Query(max_length=255)] = None,
        channel: Annotated[str | None, Query(max_length=255)] = None,
        reason: Annotated[Reason | None, Query()] = None,
        limit: Limit = 100,
        cursor: IdCursor = 0,
    ) -> Response:
        """Dead letters by id, the newest last. `cursor` goes into the next request."""
        only(request, ("subscription", "channel", "reason", "limit", "cursor"))
        running = service()
        which = DeadLetterFilter(
            running.namespace,
            None if subscription is None else check_channel(subscription, "subscription"),
            None if channel is None else check_channel(channel, "channel"),
            reason,
        )
        page = await running.dead_letters.page(which, cursor, limit)
        reached = page[-1].id if page else cursor
        # A page is bounded in bytes too, so a short one may not be the last.
        has_more = bool(page and await running.dead_letters.page(which, reached, 1))
        encoded = encode_page(b"dead_letters", map(encode_dead_letter, page), has_more, reached)
        return Response(encoded, media_type=JSON)

    @routes.post(
        "/v1/dead-letters/replay",
        responses=answers("How many.", schema("ReplayedAll")),
        openapi_extra=takes("Replay"),
    )
    async def replay_all(
        request: Request, dry_run: Annotated[bool, Query(description="Only say how many.")] = False
    ) -> Response:
        """Give back all that match, `max` at most, and pass over what another replay holds. With a `rate`
        they become due one after the other, so many a second."""
        only(request, ("dry_run",))
        running = service()
        running.require_ready()
        asked = parse_replay(running.namespace, await read_json(request))
        letters = running.dead_letters
        replayed, skipped = (
            await letters.replayable(asked.which, asked.max)
            if dry_run
            else await letters.replay_all(asked.which, asked.max, asked.rate)
        )
        answer = {"replayed": replayed, "skipped": skipped} | ({"dry_run": True} if dry_run else {})
        return Response(msgspec.json.encode(answer), media_type=JSON)

    @routes.post(
        "/v1/dead-letters/purge",
        responses=answers("How many.", schema("Purged")),
        openapi_extra=takes("Purge"),
    )
    async def purge(request: Request) -> Response:
        """Delete all that match and are old enough."""
        only(request, ())
        running, raw = service(), await read_json(request)
        which = parse_purge(running.namespace, raw, datetime.now(UTC))
        purged = await running.dead_letters.purge(which)
        return Response(msgspec.json.encode({"purged": purged}), media_type=JSON)
