"""History over REST: pages of JSON, or everything as NDJSON in constant memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import StreamingResponse

from app.routes.parameters import After, Before, ChannelName, Id, Keys, Limit, SinceText, Types, only
from app.wire.checks import check_key, check_type
from app.wire.cloudevents import to_cloudevent
from app.wire.encode import encode_message
from app.wire.moments import parse_since
from app.wiring import Service
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Message
from subscriptions.domain.names import check_channel
from subscriptions.domain.selection import select
from subscriptions.ports import HistoryQuery, Lost

NDJSON: Final = "application/x-ndjson"
CLOUDEVENT: Final = "application/cloudevents+json"
CLOUDEVENTS: Final = "application/cloudevents-batch+json"
JSON: Final = "application/json"
HISTORY_CHANGED: Final = "Gapless-History-Changed"
"""First and last id of what a reader at this cursor may have seen and the log does not hold any more."""
_PARAMETERS: Final = ("after", "before", "since", "type", "key", "limit", "order")
_EVERYTHING: Final = 2**62

Encode = Callable[[Message], bytes]


def router(service: Callable[[], Service]) -> APIRouter:
    """The routes, over whatever service is running."""
    routes = APIRouter(tags=["history"])

    @routes.get("/v1/channels/{channel}/messages", responses=_RESPONSES)
    async def history(
        request: Request,
        channel: ChannelName,
        after: After = None,
        before: Before = None,
        since: SinceText = None,
        types: Types = None,
        keys: Keys = None,
        limit: Limit = 100,
        order: Annotated[Literal["asc", "desc"], Query(description="Oldest or newest first.")] = "asc",
    ) -> Response:
        """A page of history. `cursor` goes into `after` (ascending) or `before` (descending) for the next.

        `Accept: application/x-ndjson` streams everything asked for, one message a line; there a `limit`
        that is not given is no limit.
        """
        only(request, _PARAMETERS)
        wanted = _accepted(request.headers.get("accept", ""))
        running = service()
        query = HistoryQuery(
            running.namespace,
            check_channel(channel),
            after,
            before,
            None if since is None else parse_since(since, datetime.now(UTC)),
            tuple(check_type(t) for t in types or ()),
            tuple(check_key(k) for k in keys or ()),
            _EVERYTHING if wanted == NDJSON and "limit" not in request.query_params else limit,
            order == "asc",
        )
        lost = await _lost(running, query)
        headers = {} if lost is None else {HISTORY_CHANGED: f"{lost.first_id}-{lost.last_id}"}
        if wanted == NDJSON:
            encode = to_cloudevent if CLOUDEVENT in request.headers.get("accept", "") else encode_message
            return await _stream(running, query, encode, headers)
        messages, has_more = await running.history.history(query)
        if wanted == CLOUDEVENTS:
            return Response(b"[%b]" % b",".join(map(to_cloudevent, messages)), 200, headers, CLOUDEVENTS)
        return Response(_page(query, messages, has_more, lost), 200, headers, JSON)

    @routes.get("/v1/channels/{channel}/messages/{message_id}", responses=_ONE)
    async def message(request: Request, channel: ChannelName, message_id: Id) -> Response:
        """One message."""
        only(request, ())
        running = service()
        found = await running.history.message(running.namespace, check_channel(channel), message_id)
        if CLOUDEVENT in request.headers.get("accept", ""):
            return Response(to_cloudevent(found), media_type=CLOUDEVENT)
        return Response(encode_message(found), media_type=JSON)

    return routes


def _accepted(accept: str) -> str:
    """The representation to answer with. Raises `not_acceptable`."""
    ranges = {part.split(";")[0].strip().lower() for part in accept.split(",") if part.strip()}
    if NDJSON in ranges:
        return NDJSON
    if ranges & {CLOUDEVENTS, CLOUDEVENT}:
        return CLOUDEVENTS
    if not ranges or ranges & {JSON, "application/*", "*/*"}:
        return JSON
    raise GaplessError(Code.NOT_ACCEPTABLE, f"history is {JSON}, {NDJSON} or {CLOUDEVENTS}")


async def _lost(service: Service, query: HistoryQuery) -> Lost | None:
    """What a reader that goes on after its cursor may have seen and the log does not hold."""
    if query.after is None:
        return None
    return await service.live.read.lost(select(query.namespace, (query.channel,)), query.after)


def _page(query: HistoryQuery, messages: list[Message], has_more: bool, lost: Lost | None) -> bytes:
    cursor = messages[-1].id if messages else (query.after if query.ascending else query.before) or 0
    gap = b""
    if lost is not None:
        gap = b',"gap":{"reason":"history_changed","ids":[%d,%d]}' % (lost.first_id, lost.last_id)
    return b'{"messages":[%b],"has_more":%b,"cursor":%d%b}' % (
        b",".join(map(encode_message, messages)),
        b"true" if has_more else b"false",
        cursor,
        gap,
    )


async def _stream(service: Service, query: HistoryQuery, encode: Encode, headers: dict[str, str]) -> Response:
    """The first batch is read before the status is sent, so that a refusal is still a status."""
    batches = service.history.export(query)
    try:
        first = [_lines(await anext(batches), encode)]
    except StopAsyncIteration:
        first = []

    async def lines() -> AsyncIterator[bytes]:
        while first:
            yield first.pop()
        # A reader may be slow: nothing but the lines is held for it meanwhile.
        while (batch := await anext(batches, None)) is not None:
            text, batch = _lines(batch, encode), None
            yield text
            del text

    return StreamingResponse(lines(), 200, headers, NDJSON)


def _lines(messages: list[Message], encode: Encode) -> bytes:
    return b"".join([encode(m) + b"\n" for m in messages])


_ONE: Final[dict[int | str, dict[str, object]]] = {
    200: {
        "description": "The message.",
        "content": {
            JSON: {"schema": {"$ref": "#/components/schemas/Message"}},
            CLOUDEVENT: {"schema": {"type": "object"}},
        },
    }
}
_RESPONSES: Final[dict[int | str, dict[str, object]]] = {
    200: {
        "description": "A page, or a stream of lines.",
        "content": {
            JSON: {"schema": {"$ref": "#/components/schemas/Page"}},
            NDJSON: {"schema": {"type": "string"}},
            CLOUDEVENTS: {"schema": {"type": "array", "items": {"type": "object"}}},
        },
    }
}
