"""History over REST: pages of JSON, or everything as NDJSON in constant memory."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import StreamingResponse

from app.api import answers
from app.http.accept import CLOUDEVENT, CLOUDEVENTS, NDJSON, form_of_history, wants_cloudevent
from app.http.parameters import Id, Keys, Limit, Since, Types
from app.http.request import Answer, Plain, Request
from app.message.cloudevents import to_cloudevent
from app.message.limits import check_key, check_type
from app.message.message import encode_message
from app.message.times import parse_since
from app.metrics.registry import REQUESTS
from subscriptions import ports
from subscriptions.domain.errors import GaplessError, credential_ended
from subscriptions.domain.model import MAX_ID, Message
from subscriptions.domain.selection import select
from subscriptions.ports import HistoryPort, Lost, ReadPort

HISTORY_CHANGED: Final = "Gapless-History-Changed"
"""First and last id of messages that a reader at this cursor may have seen and the log does not hold."""
_EVERYTHING: Final = 2**62
_PAGE: Final = 100

logger = logging.getLogger("gapless.http")

Encode = Callable[[Message], bytes]


class HistoryQuery(msgspec.Struct):
    """A part of a channel's history."""

    after: Annotated[Id, Meta(description="Only messages after this id.")] | UnsetType = UNSET
    before: (
        Annotated[int, Meta(ge=0, le=MAX_ID + 1, description="Only messages before this id.")] | UnsetType
    ) = UNSET
    since: Since | UnsetType = UNSET
    type: Types = []
    key: Keys = []
    limit: Limit | UnsetType = UNSET
    order: Annotated[Literal["asc", "desc"], Meta(description="Oldest or newest first.")] = "asc"


class MessagePage(msgspec.Struct):
    """A page of history."""

    messages: list[answers.Message]
    has_more: bool
    cursor: Id
    gap: answers.HistoryGap | UnsetType = UNSET


async def list_messages(
    request: Request[HistoryQuery], history: HistoryPort, read: ReadPort
) -> Answer | None:
    """Read a page of a channel's history. For the next page, `cursor` goes into `after` (ascending) or
    `before` (descending).

    `Accept: application/x-ndjson` streams all messages asked for, one per line. There is no `limit` unless
    one is given.
    """
    accept = request.headers.get("accept", "")
    wanted = form_of_history(accept)
    query = _query(request, _EVERYTHING if wanted == NDJSON else _PAGE)
    lost = await _lost(read, query)
    if lost is not None:
        query = replace(query, after=lost.stands)
    headers = {} if lost is None else {HISTORY_CHANGED: f"{lost.first_id}-{lost.last_id}"}
    if wanted == NDJSON:
        encode = to_cloudevent if wants_cloudevent(accept) else encode_message
        await _stream(request, query, encode, headers, history)
        return None
    raw_headers = tuple((name.lower().encode(), value.encode()) for name, value in headers.items())
    messages, has_more = await history.history(query)
    if wanted == CLOUDEVENTS:
        return Answer(
            b"[%b]" % b",".join(map(to_cloudevent, messages)), 200, raw_headers, CLOUDEVENTS.encode()
        )
    return Answer(_page(query, messages, has_more, lost), 200, raw_headers)


async def get_message(request: Plain, history: HistoryPort) -> Answer:
    """Get one message."""
    found = await history.message(request.namespace, request.name, request.number)
    if wants_cloudevent(request.headers.get("accept", "")):
        return Answer(to_cloudevent(found), media_type=CLOUDEVENT.encode())
    return Answer(encode_message(found))


def _query(request: Request[HistoryQuery], limit: int) -> ports.HistoryQuery:
    """The query; `limit` is the default limit. Raises `invalid_request`."""
    given = request.query
    return ports.HistoryQuery(
        request.namespace,
        request.name,
        given.after if isinstance(given.after, int) else None,
        given.before if isinstance(given.before, int) else None,
        parse_since(given.since, datetime.now(UTC)) if isinstance(given.since, str) else None,
        tuple(map(check_type, given.type)),
        tuple(map(check_key, given.key)),
        given.limit if isinstance(given.limit, int) else limit,
        given.order == "asc",
    )


async def _lost(read: ReadPort, query: ports.HistoryQuery) -> Lost | None:
    """The messages that a reader after its cursor may have seen and the log does not hold."""
    if query.after is None:
        return None
    return await read.lost(select(query.namespace, (query.channel,)), query.after)


def _page(query: ports.HistoryQuery, messages: list[Message], has_more: bool, lost: Lost | None) -> bytes:
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


async def _stream(
    request: Request[Any],
    query: ports.HistoryQuery,
    encode: Encode,
    headers: dict[str, str],
    history: HistoryPort,
) -> None:
    """Streams history. It reads the first batch before it sends the status, so a refusal is still a status.
    A later failure aborts the connection: if the error were only raised, the body would look complete."""
    batches = history.export(query)
    try:
        first = [_lines(await anext(batches), encode)]
    except StopAsyncIteration:
        first = []

    async def lines() -> AsyncIterator[bytes]:
        try:
            while first:
                yield first.pop()
            # A reader may be slow: nothing but the lines is held for it meanwhile.
            while (batch := await anext(batches, None)) is not None:
                if request.principal.lifetime.over:
                    raise credential_ended()
                text, batch = _lines(batch, encode), None
                yield text
                del text
        except GaplessError as error:
            logger.info("an export was cut off: %s", error.detail)
            request.connection.abort()
        except Exception:
            logger.exception("an export failed", extra={"request_id": request.id.decode()})
            request.connection.abort()

    REQUESTS.labels("rest", 200).inc()
    headers["X-Request-Id"] = request.id.decode()
    await StreamingResponse(lines(), 200, headers, NDJSON)(request.scope, request.receive, request.send)


def _lines(messages: list[Message], encode: Encode) -> bytes:
    return b"".join([encode(m) + b"\n" for m in messages])
