"""Routes that list, replay and delete dead letters."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

import msgspec

from app.api.dead_letter_bodies import parse_purge, parse_replay
from app.api.lists import page_by_id
from app.http.body import read_json
from app.http.parameters import DeadLettersQuery, DryRunQuery
from app.http.request import NO_CONTENT, Answer, Plain, Request
from app.message.deliveries import encode_dead_letter
from subscriptions.domain.delivery import DeadLetterFilter, Reason
from subscriptions.domain.names import check_channel
from subscriptions.engine.durable.announcing import AnnouncingDeadLetters
from subscriptions.engine.gate import Gate


async def get_dead_letter(request: Plain, dead_letters: AnnouncingDeadLetters) -> Answer:
    """Get one dead letter."""
    return Answer(encode_dead_letter(await dead_letters.port.get(request.namespace, request.number)))


async def delete_dead_letter(request: Plain, dead_letters: AnnouncingDeadLetters) -> Answer:
    """Delete a dead letter for good, with its copy of the message."""
    await dead_letters.port.delete(request.namespace, request.number)
    return NO_CONTENT


async def replay_dead_letter(request: Plain, dead_letters: AnnouncingDeadLetters, gate: Gate) -> Answer:
    """Give a dead letter back to the subscription that failed it. If it is replayed twice, the second replay
    gets 404."""
    gate.require()
    name, message_id = await dead_letters.replay(request.namespace, request.number)
    answer = {"id": request.number, "subscription": name, "message_id": message_id}
    return Answer(msgspec.json.encode(answer))


async def list_dead_letters(
    request: Request[DeadLettersQuery], dead_letters: AnnouncingDeadLetters
) -> Answer:
    """List dead letters by id, the newest last. `cursor` goes into the next request."""
    query = request.query
    which = DeadLetterFilter(
        request.namespace,
        check_channel(query.subscription, "subscription") if isinstance(query.subscription, str) else None,
        check_channel(query.channel, "channel") if isinstance(query.channel, str) else None,
        query.reason if isinstance(query.reason, Reason) else None,
    )
    read = partial(dead_letters.port.page, which)
    return await page_by_id(b"dead_letters", read, encode_dead_letter, query.cursor, query.limit)


async def replay_dead_letters(
    request: Request[DryRunQuery], dead_letters: AnnouncingDeadLetters, gate: Gate
) -> Answer:
    """Give back all dead letters that match, at most `max`. Dead letters that another replay holds are
    skipped. With a `rate` they become due one after the other, that many per second."""
    gate.require()
    asked = parse_replay(request.namespace, await read_json(request))
    dry_run = request.query.dry_run
    replayed, skipped = (
        await dead_letters.port.replayable(asked.which, asked.max)
        if dry_run
        else await dead_letters.replay_all(asked.which, asked.max, asked.rate)
    )
    answer = {"replayed": replayed, "skipped": skipped} | ({"dry_run": True} if dry_run else {})
    return Answer(msgspec.json.encode(answer))


async def purge_dead_letters(request: Plain, dead_letters: AnnouncingDeadLetters) -> Answer:
    """Delete all dead letters that match and are old enough."""
    which = parse_purge(request.namespace, await read_json(request), datetime.now(UTC))
    return Answer(msgspec.json.encode({"purged": await dead_letters.port.purge(which)}))
