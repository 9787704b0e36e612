"""Who is on a channel."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from app.api.answers import Count, Time
from app.http.parameters import (
    Limit,
)
from app.http.request import Answer, Request
from app.message.times import rfc3339
from subscriptions.engine.presence import Presence

ClientCursor = Annotated[
    str,
    Meta(
        pattern=r"^[0-9a-f-]{0,36}$",
        max_length=36,
        description="`cursor` of the page before.",
        extra={"status": 400},
    ),
]


class PresenceQuery(msgspec.Struct):
    """Which clients on a channel are listed."""

    limit: Limit = 100
    cursor: ClientCursor = ""


class PresentClient(msgspec.Struct):
    """A client on a channel. `user`: the subject of its credential."""

    client: str
    user: str | None
    connected_at: Time


class PresencePage(msgspec.Struct):
    """A page of the clients on a channel, and how many clients and different users are on it. `complete` is
    false where some of them may be missing."""

    channel: str
    clients: list[PresentClient]
    num_clients: Count
    num_users: Count
    has_more: bool
    cursor: str | None
    complete: bool


async def list_presence(request: Request[PresenceQuery], presence: Presence) -> Answer:
    """List the clients on a channel: those with an open live subscription that names it. `cursor` goes into
    the next request; it is null on the last page. `complete` is false where the service had no place to show
    all clients. A channel that does not exist may have clients too."""
    channel = (request.namespace, request.name)
    page = await presence.page(channel, request.query.cursor, request.query.limit)
    stats = await presence.stats(channel)
    shown = PresencePage(
        channel=request.name,
        clients=[
            PresentClient(each.id, each.user, rfc3339(each.connected_at_us).decode()) for each in page.clients
        ],
        num_clients=stats.clients,
        num_users=stats.users,
        has_more=page.has_more,
        cursor=page.clients[-1].id if page.has_more else None,
        complete=page.complete and stats.complete,
    )
    return Answer(msgspec.json.encode(shown))
