"""The route for tickets: for browsers, whose EventSource can send no header."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.http.body import read_json
from app.http.principals import Principals
from app.http.request import Answer, Plain
from app.message import limits
from app.message.refusals import decode
from app.message.times import rfc3339
from subscriptions.domain.errors import invalid
from subscriptions.domain.names import check_channel
from subscriptions.domain.pattern import check_budget, check_pattern
from subscriptions.domain.principal import Action, Grant, Noun
from subscriptions.domain.selection import MAX_CHANNELS

SECONDS: Final = 30.0
_Channels = Annotated[list[limits.Name], Meta(extra_json_schema={"minItems": 1, "maxItems": MAX_CHANNELS})]


class TicketRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the ticket opens: these channels (names and patterns), or this subscription; without either,
    whatever the credential may open."""

    channels: _Channels | UnsetType = UNSET
    subscription: limits.Name | UnsetType = UNSET


class Ticket(msgspec.Struct):
    """A ticket opens one stream, as `?ticket=`, until `expires_at`."""

    ticket: str
    expires_at: str


async def create_ticket(request: Plain, principals: Principals) -> Answer:
    """Make a ticket for one stream, where a browser can send no credential. The stream ends with the
    credential that asked for the ticket."""
    asked, holder = decode(await read_json(request), TicketRequest), request.principal
    channels: list[str] = []
    if not isinstance(asked.channels, UnsetType):
        if not 1 <= len(asked.channels) <= MAX_CHANNELS:
            raise invalid("channels", f"must be 1 to {MAX_CHANNELS}")
        channels = [check_pattern(c, f"channels[{n}]") for n, c in enumerate(asked.channels)]
        check_budget(channels, "channels")
    grants: list[Grant] = []
    if channels:
        left = holder.narrow((Action.SUBSCRIBE,), Noun.CHANNEL, channels)
        grants.append(Grant(frozenset({Action.SUBSCRIBE}), tuple(left)))
    if not isinstance(asked.subscription, UnsetType):
        name = check_channel(asked.subscription, "subscription")
        holder.require((Action.CONSUME,), Noun.SUBSCRIPTION, (name,))
        grants.append(Grant(frozenset({Action.CONSUME}), (), (name,)))
    if grants:
        holder = replace(holder, grants=tuple(grants), operator=False)
    ticket, expires_us = await principals.give_ticket(holder, SECONDS)
    told = Ticket(ticket, rfc3339(expires_us).decode())
    return Answer(msgspec.json.encode(told), 201, ((b"cache-control", b"no-store"),))
