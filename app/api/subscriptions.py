"""Routes that create, show, change, move, pause and delete durable subscriptions."""

from __future__ import annotations

from datetime import UTC, datetime

from app.api.definition_bodies import parse_binding, parse_patch, parse_seek, parse_subscription
from app.api.definition_encoding import encode_length, encode_subscription, encode_try
from app.api.lists import NamesQuery, name_pattern, page_by_name
from app.http.body import read_json
from app.http.parameters import DeleteQuery, DryRunQuery, LookQuery
from app.http.request import NO_CONTENT, Answer, Plain, Request
from app.message.deliveries import encode_looked
from app.message.tags import etag, if_absent, if_match
from subscriptions.domain.delivery import State, Subscription
from subscriptions.engine.durable.announcing import AnnouncingSubscriptions
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.gate import Gate


async def list_subscriptions(request: Request[NamesQuery], subscriptions: AnnouncingSubscriptions) -> Answer:
    """List subscriptions by name. `cursor` goes into the next request; it is null on the last page."""
    regex, limit = name_pattern(request.query), request.query.limit
    found = await subscriptions.port.page(request.namespace, regex, request.query.cursor, limit + 1)
    return page_by_name("subscriptions", [(each.name, encode_subscription(each)) for each in found], limit)


async def get_subscription(request: Plain, subscriptions: AnnouncingSubscriptions) -> Answer:
    """Get a subscription: its definition and its stats."""
    return _answer(await subscriptions.port.get(request.namespace, request.name, stats=True))


async def get_subscription_length(request: Plain, subscriptions: AnnouncingSubscriptions) -> Answer:
    """Count the messages that a subscription holds, without the cost of its full statistics."""
    return Answer(encode_length(await subscriptions.port.length(request.namespace, request.name)))


async def put_subscription(
    request: Plain, subscriptions: AnnouncingSubscriptions, allow_private: bool
) -> Answer:
    """Create a subscription. 200 if an equal one exists already, 409 if the name has another definition.
    `If-Match` replaces that one; `If-None-Match: *` only creates."""
    tags, absent = if_match(request.headers), if_absent(request.headers)
    raw = await read_json(request)
    definition = parse_subscription(request.name, raw, datetime.now(UTC), allow_private=allow_private)
    made, was_made = await subscriptions.put(request.namespace, definition, if_match=tags, if_absent=absent)
    return _answer(made, 201 if was_made else 200)


async def patch_subscription(
    request: Plain, subscriptions: AnnouncingSubscriptions, allow_private: bool
) -> Answer:
    """Change some members of a subscription; null clears a setting, so that a policy or the default applies
    again."""
    tags, raw = if_match(request.headers), await read_json(request)
    channels, settings = parse_patch(request.name, raw, allow_private=allow_private)
    changed = await subscriptions.patch(request.namespace, request.name, channels, settings, if_match=tags)
    return _answer(changed)


async def delete_subscription(
    request: Request[DeleteQuery], subscriptions: AnnouncingSubscriptions
) -> Answer:
    """Delete a subscription, also its messages in flight. Its dead letters stay."""
    await subscriptions.delete(
        request.namespace,
        request.name,
        if_match=if_match(request.headers),
        if_empty=request.query.if_empty,
        if_unused=request.query.if_unused,
    )
    return NO_CONTENT


async def bind_subscription(request: Plain, subscriptions: AnnouncingSubscriptions) -> Answer:
    """Add channels or patterns to a subscription. Those bound already stay bound."""
    return await _bind(request, subscriptions, bound=True)


async def unbind_subscription(request: Plain, subscriptions: AnnouncingSubscriptions) -> Answer:
    """Remove channels or patterns from a subscription. At least one has to stay."""
    return await _bind(request, subscriptions, bound=False)


async def _bind(request: Plain, subscriptions: AnnouncingSubscriptions, *, bound: bool) -> Answer:
    tags, channels = if_match(request.headers), parse_binding(await read_json(request))
    changed = await subscriptions.bind(request.namespace, request.name, channels, bound, if_match=tags)
    return _answer(changed)


async def seek_subscription(request: Request[DryRunQuery], subscriptions: AnnouncingSubscriptions) -> Answer:
    """Move a subscription to another place in the log. Messages in flight, delayed or waiting are forgotten;
    dead letters stay."""
    tags = if_match(request.headers)
    to = parse_seek(await read_json(request), datetime.now(UTC))
    if request.query.dry_run:
        tried = await subscriptions.port.try_seek(request.namespace, request.name, to, if_match=tags)
        return Answer(encode_try(*tried), headers=etag(tried[0].tag))
    return _answer(await subscriptions.seek(request.namespace, request.name, to, if_match=tags))


async def purge_subscription(request: Plain, subscriptions: AnnouncingSubscriptions, gate: Gate) -> Answer:
    """Remove all ready, delayed and waiting messages from a subscription, for good. Messages in flight stay,
    and the log keeps all."""
    tags = if_match(request.headers)
    gate.require()
    purged = await subscriptions.purge(request.namespace, request.name, if_match=tags)
    return Answer(b'{"purged":%d}' % purged)


async def pause_subscription(request: Plain, subscriptions: AnnouncingSubscriptions) -> Answer:
    """Pause a subscription: nothing is handed out until it is resumed. Leases, expiry and dead letters go
    on."""
    return await _pause(request, subscriptions, paused=True)


async def resume_subscription(request: Plain, subscriptions: AnnouncingSubscriptions) -> Answer:
    """Resume a subscription."""
    return await _pause(request, subscriptions, paused=False)


async def _pause(request: Plain, subscriptions: AnnouncingSubscriptions, *, paused: bool) -> Answer:
    tags = if_match(request.headers)
    changed = await subscriptions.pause(request.namespace, request.name, paused, if_match=tags)
    return _answer(changed)


async def list_outstanding(request: Request[LookQuery], consumers: Consumers) -> Answer:
    """List the messages that a subscription has not settled, by id. It leases nothing and counts no attempt.
    `cursor` goes into the next request."""
    query = request.query
    state = query.state if isinstance(query.state, State) else None
    looked = await consumers.look(request.namespace, request.name, state, query.cursor, query.limit)
    return Answer(encode_looked(looked))


def _answer(subscription: Subscription, status: int = 200) -> Answer:
    return Answer(encode_subscription(subscription), status, etag(subscription.tag))
