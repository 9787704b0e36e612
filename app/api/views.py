"""A channel as it is after all changes (`view=latest`), and the changes of one message."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.api import answers
from app.http.parameters import IdCursor, Limit
from app.http.request import Answer, Request
from app.message.message import encode_message, encode_original
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Message
from subscriptions.ports import HistoryPort, HistoryQuery, LatestPage, ViewPort

View = Annotated[
    Literal["log", "latest"],
    Meta(description="The messages as they came, or originals only, as they are after all changes."),
]


class Original(answers.Message, kw_only=True):
    """A message that changes no other, as it is after all changes. A deleted one has no data."""

    version: Annotated[answers.Id, Meta(description="The newest message that changed it, or its own id.")]
    replies: answers.Count
    annotations: Annotated[
        dict[str, dict[str, Any]],
        Meta(description="How many, by name and mode; of names with keys also by key. A flag is true."),
    ]
    deleted: bool | UnsetType = UNSET


class OriginalPage(msgspec.Struct):
    """A page of originals, and the newest id of the channel at that moment."""

    messages: list[Original]
    has_more: bool
    cursor: answers.Id
    head: answers.Id
    gap: answers.HistoryGap | UnsetType = UNSET


class MessageQuery(msgspec.Struct):
    """How one message is shown."""

    view: View = "log"


class ChangesQuery(msgspec.Struct):
    """Which changes of a message are listed."""

    limit: Limit = 100
    cursor: IdCursor = 0


class ChangesPage(msgspec.Struct):
    """A page of messages."""

    messages: list[answers.Message]
    has_more: bool
    cursor: answers.Id


def encode_page(query: HistoryQuery, page: LatestPage, gap: bytes) -> bytes:
    """A page of originals. Its cursor is for the next page, and to subscribe after: no change that is not in
    the page came before it."""
    if page.originals and (page.has_more or not query.ascending):
        cursor = page.originals[-1].message.id
    else:
        cursor = page.head if query.ascending and query.before is None else query.before or 0
    return b'{"messages":[%b],"has_more":%b,"cursor":%d,"head":%d%b}' % (
        b",".join(map(encode_original, page.originals)),
        b"true" if page.has_more else b"false",
        cursor,
        page.head,
        gap,
    )


async def list_versions(request: Request[ChangesQuery], history: HistoryPort, views: ViewPort) -> Answer:
    """List the versions of a message: itself, its updates and its deletion, as they came. `cursor` goes into
    the next request."""
    return await _changes(request, history, views, ("update", "delete"), with_itself=True)


async def list_replies(request: Request[ChangesQuery], history: HistoryPort, views: ViewPort) -> Answer:
    """List the replies to a message, as they came. `cursor` goes into the next request."""
    return await _changes(request, history, views, ("reply",), with_itself=False)


async def _changes(
    request: Request[ChangesQuery],
    history: HistoryPort,
    views: ViewPort,
    actions: tuple[str, ...],
    *,
    with_itself: bool,
) -> Answer:
    namespace, channel, number = request.namespace, request.name, request.number
    itself = await history.message(namespace, channel, number)
    if not itself.is_original:
        detail = f"message {number} of channel {channel} changes another one"
        raise GaplessError(Code.MESSAGE_NOT_FOUND, detail)
    cursor, limit = request.query.cursor, request.query.limit
    first = [itself] if with_itself and cursor < number else []
    left = limit - len(first)
    found: list[Message] = []
    has_more = True
    if left > 0:
        found, has_more = await views.changes(namespace, channel, number, actions, cursor, left)
    messages = first + found
    return Answer(
        b'{"messages":[%b],"has_more":%b,"cursor":%d}'
        % (
            b",".join(map(encode_message, messages)),
            b"true" if has_more else b"false",
            messages[-1].id if messages else cursor,
        )
    )
