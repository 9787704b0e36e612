"""History over REST: pages of JSON, or everything as NDJSON in constant memory."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import StreamingResponse

from app.api import answers
from app.api.views import MessageQuery, View, encode_page
from app.http.accept import CLOUDEVENT, CLOUDEVENTS, NDJSON, form_of_history, wants_cloudevent
from app.http.parameters import ChangesFilter, Id, Keys, Limit, Since, Types
from app.http.request import Answer, Request
from app.message.cloudevents import original_to_cloudevent, to_cloudevent
from app.message.limits import check_key, check_type
from app.message.message import encode_message, encode_original
from app.message.times import parse_since
from app.metrics.registry import REQUESTS
from subscriptions import ports
from subscriptions.domain.errors import GaplessError, credential_ended, invalid
from subscriptions.domain.model import MAX_ID
from subscriptions.domain.selection import select
from subscriptions.ports import HistoryPage, HistoryPort, Lost, ReadPort, ViewPort

HISTORY_CHANGED: Final = "Gapless-History-Changed"
"""First and last id of messages that a reader at this cursor may have seen and the log does not hold."""
_EVERYTHING: Final = 2**62
_PAGE: Final = 100

logger = logging.getLogger("gapless.http")

T = TypeVar("T")


class HistoryQuery(msgspec.Struct):
    """A part of a channel's history."""

    after: Annotated[Id, Meta(description="Only messages after this id.")] | UnsetType = UNSET
    before: (
        Annotated[int, Meta(ge=0, le=MAX_ID + 1, description="Only messages before this id.")] | UnsetType
    ) = UNSET
    since: Since | UnsetType = UNSET
    type: Types = []
    key: Keys = []
    changes: ChangesFilter = "all"
    limit: Limit | UnsetType = UNSET
    order: Annotated[Literal["asc", "desc"], Meta(description="Oldest or newest first.")] = "asc"
    view: View = "log"
    changed_after: (
        Annotated[Id, Meta(description="With `view=latest`: only what a message after this id changed.")]
        | UnsetType
    ) = UNSET


class MessagePage(msgspec.Struct):
    """A page of history."""

    messages: list[answers.Message]
    has_more: bool
    cursor: Id
    gap: answers.HistoryGap | UnsetType = UNSET


async def list_messages(
    request: Request[HistoryQuery], history: HistoryPort, views: ViewPort, read: ReadPort
) -> Answer | None:
    """Read a page of a channel's history. For the next page, `cursor` goes into `after` (ascending) or
    `before` (descending).

    `Accept: application/x-ndjson` streams all messages asked for, one per line. There is no `limit` unless
    one is given. `view=latest` shows originals as they are after all changes.
    """
    accept = request.headers.get("accept", "")
    wanted = form_of_history(accept)
    query = _query(request, _EVERYTHING if wanted == NDJSON else _PAGE)
    lost = await _lost(read, query)
    if lost is not None:
        query = replace(query, after=lost.stands)
    headers = {} if lost is None else {HISTORY_CHANGED: f"{lost.first_id}-{lost.last_id}"}
    raw_headers = tuple((name.lower().encode(), value.encode()) for name, value in headers.items())
    changed_after = _changed_after(request.query)
    if wanted == NDJSON:
        of_events = wants_cloudevent(accept)
        if request.query.view == "latest":
            encode_one = original_to_cloudevent if of_events else encode_original
            await _stream(request, views.export(query, changed_after), encode_one, headers)
        else:
            encode = to_cloudevent if of_events else encode_message
            await _stream(request, history.export(query), encode, headers)
        return None
    if request.query.view == "latest":
        page = await views.latest(query, changed_after)
        if wanted == CLOUDEVENTS:
            return _events(map(original_to_cloudevent, page.originals), raw_headers)
        return Answer(encode_page(query, page, _gap(lost)), 200, raw_headers)
    log = await history.history(query)
    if wanted == CLOUDEVENTS:
        return _events(map(to_cloudevent, log.messages), raw_headers)
    return Answer(_page(query, log, lost), 200, raw_headers)


def _events(events: Iterable[bytes], headers: tuple[tuple[bytes, bytes], ...]) -> Answer:
    return Answer(b"[%b]" % b",".join(events), 200, headers, CLOUDEVENTS.encode())


def _changed_after(query: HistoryQuery) -> int | None:
    """Raises `invalid_request`."""
    if query.view == "latest" and query.changes != "all":
        raise invalid("changes", "is for view=log")
    if not isinstance(query.changed_after, int):
        return None
    if query.view != "latest":
        raise invalid("changed_after", "is for view=latest")
    if query.order != "asc":
        raise invalid("order", "cannot be desc with changed_after")
    return query.changed_after


async def get_message(request: Request[MessageQuery], history: HistoryPort, views: ViewPort) -> Answer:
    """Get one message. `view=latest` shows an original as it is after all changes."""
    as_event = wants_cloudevent(request.headers.get("accept", ""))
    if request.query.view == "latest":
        original = await views.original(request.namespace, request.name, request.number)
        if as_event:
            return Answer(original_to_cloudevent(original), media_type=CLOUDEVENT.encode())
        return Answer(encode_original(original))
    found = await history.message(request.namespace, request.name, request.number)
    if as_event:
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
        given.changes,
    )


async def _lost(read: ReadPort, query: ports.HistoryQuery) -> Lost | None:
    """The messages that a reader after its cursor may have seen and the log does not hold."""
    if query.after is None:
        return None
    return await read.lost(select(query.namespace, (query.channel,)), query.after)


def _page(query: ports.HistoryQuery, page: HistoryPage, lost: Lost | None) -> bytes:
    """A page of the log. Its cursor is for the next page: nothing that this one asked for lies between."""
    cursor = (query.after if query.ascending else query.before) or 0
    if page.messages:
        cursor = page.messages[-1].id
    elif query.ascending and query.before is None:
        cursor = max(cursor, page.head)
    return b'{"messages":[%b],"has_more":%b,"cursor":%d%b}' % (
        b",".join(map(encode_message, page.messages)),
        b"true" if page.has_more else b"false",
        cursor,
        _gap(lost),
    )


def _gap(lost: Lost | None) -> bytes:
    if lost is None:
        return b""
    return b',"gap":{"reason":"history_changed","ids":[%d,%d]}' % (lost.first_id, lost.last_id)


async def _stream(
    request: Request[Any],
    batches: AsyncIterator[list[T]],
    encode: Callable[[T], bytes],
    headers: dict[str, str],
) -> None:
    """Streams history. It reads the first batch before it sends the status, so a refusal is still a status.
    A later failure aborts the connection: if the error were only raised, the body would look complete."""
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


def _lines(messages: list[T], encode: Callable[[T], bytes]) -> bytes:
    return b"".join([encode(m) + b"\n" for m in messages])
