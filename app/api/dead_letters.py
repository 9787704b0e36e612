"""Dead letters: they are listed, replayed, purged and deleted."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.api import answers
from app.api.answers import Count, Time, or_unset, stored
from app.api.lists import granted_names, page_by_id
from app.http.body import read_json
from app.http.parameters import DryRunQuery, Id, IdCursor, Limit, Name
from app.http.request import NO_CONTENT, Answer, Plain, Request
from app.message import limits
from app.message.message import encode_message
from app.message.refusals import decode
from app.message.times import MAX_MOMENT_CHARACTERS, parse_since, rfc3339
from subscriptions.domain import delivery
from subscriptions.domain.delivery import DeadLetterFilter, Reason
from subscriptions.domain.errors import invalid
from subscriptions.domain.model import MAX_ID, microseconds
from subscriptions.domain.names import check_channel
from subscriptions.domain.principal import Action, Noun
from subscriptions.engine.durable.announcing import AnnouncingDeadLetters
from subscriptions.engine.gate import Gate

MAX_IDS: Final = 1000
MAX_RATE: Final = 1_000_000


class DeadLettersQuery(msgspec.Struct):
    """Which dead letters are listed."""

    subscription: Name | UnsetType = UNSET
    channel: Name | UnsetType = UNSET
    reason: Reason | UnsetType = UNSET
    limit: Limit = 100
    cursor: IdCursor = 0


class DeadLetterMembers(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters: all of these."""

    subscription: limits.Name | UnsetType | None = UNSET
    channel: limits.Name | UnsetType | None = UNSET
    reason: Reason | UnsetType | None = UNSET


class ReplayFilter(DeadLetterMembers, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters: all of these."""

    ids: Annotated[list[Id], Meta(max_length=MAX_IDS)] | UnsetType | None = UNSET


class ReplayRequest(ReplayFilter, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters, at most `max`, of which `rate` become due per second. `filter` may hold which."""

    filter: ReplayFilter | UnsetType | None = UNSET
    max: Annotated[int, Meta(ge=1, le=MAX_ID)] | UnsetType | None = UNSET
    rate: Annotated[float, Meta(gt=0, le=MAX_RATE)] | UnsetType | None = UNSET


class PurgeRequest(DeadLetterMembers, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters. `older_than` is an age in seconds or as 10m, 2h, 1d, or a time before which they
    were made."""

    older_than: Annotated[float, Meta(ge=0)] | Annotated[str, Meta(max_length=MAX_MOMENT_CHARACTERS)]


class Replay(NamedTuple):
    """Which dead letters, how many at most, and how many per second."""

    which: DeadLetterFilter
    max: int | None
    rate: float | None


def parse_replay(namespace: str, raw: bytes) -> Replay:
    """The body of a replay of many. Without members it is about all. `filter` may hold its members."""
    asked = decode(raw, ReplayRequest)
    body: ReplayFilter = asked
    if isinstance(asked.filter, ReplayFilter):
        if asked != ReplayRequest(filter=asked.filter, max=asked.max, rate=asked.rate):
            raise invalid("filter", "stands alone: its members are given inside it or beside each other")
        body = asked.filter
    ids = None if body.ids is UNSET or body.ids is None else tuple(body.ids)
    return Replay(
        DeadLetterFilter(namespace, *_narrowed(body), ids=ids),
        None if asked.max is UNSET else asked.max,
        None if asked.rate is UNSET else asked.rate,
    )


def parse_purge(namespace: str, raw: bytes, now: datetime) -> DeadLetterFilter:
    """The body of a purge: dead letters made before a time, or older than an age."""
    body = decode(raw, PurgeRequest)
    return DeadLetterFilter(namespace, *_narrowed(body), before_us=_before(body.older_than, now))


def _narrowed(body: DeadLetterMembers) -> tuple[str | None, str | None, Reason | None]:
    return (
        check_channel(body.subscription, "subscription") if isinstance(body.subscription, str) else None,
        check_channel(body.channel, "channel") if isinstance(body.channel, str) else None,
        body.reason if isinstance(body.reason, Reason) else None,
    )


def _before(older_than: float | str, now: datetime) -> int | None:
    if isinstance(older_than, str):
        return max(0, microseconds(parse_since(older_than, now, "older_than")))
    if older_than == 0:
        # All of them, independent of the clocks of this machine and of the database.
        return None
    return max(0, microseconds(now) - round(min(older_than, 1e12) * 1e6))


class Death(msgspec.Struct):
    """How often one subscription gave up on a message for one reason."""

    subscription: str
    channel: str
    reason: Reason
    count: Count
    first_at: Time
    last_at: Time


class PublishedAt(msgspec.Struct):
    """Where the copy of a dead letter was published."""

    channel: str
    id: Id
    seq: Count


class DeadLetter(msgspec.Struct):
    """A message that a subscription gave up on."""

    id: Id
    subscription: str
    channel: str
    reason: Reason
    attempts: Count
    last_error: str | None
    created_at: Time
    journey: list[Death]
    message: answers.Message
    published: PublishedAt | UnsetType = UNSET
    unroutable: str | UnsetType = UNSET


class DeadLetterPage(msgspec.Struct):
    """A page of dead letters."""

    dead_letters: list[DeadLetter]
    has_more: bool
    cursor: Id


class Replayed(msgspec.Struct):
    """A dead letter that was given back."""

    id: Id
    subscription: str
    message_id: Id


class ReplayedAll(msgspec.Struct):
    """How many dead letters were given back, and how many were skipped."""

    replayed: Count
    skipped: Count
    dry_run: bool | UnsetType = UNSET


def _require(request: Request[Any], subscription: str | None) -> None:
    """Raises `forbidden` unless the dead letters of this subscription, or of all, may be managed."""
    request.principal.require((Action.MANAGE,), Noun.SUBSCRIPTION, (subscription or ">",))


async def _require_one(request: Plain, dead_letters: AnnouncingDeadLetters) -> None:
    """As `_require`, for the dead letter in the path, which is always of one subscription."""
    if request.principal.grants is not None:
        _require(request, (await dead_letters.port.get(request.namespace, request.number)).subscription)


async def get_dead_letter(request: Plain, dead_letters: AnnouncingDeadLetters) -> Answer:
    """Get one dead letter."""
    found = await dead_letters.port.get(request.namespace, request.number)
    _require(request, found.subscription)
    return Answer(encode_dead_letter(found))


async def delete_dead_letter(request: Plain, dead_letters: AnnouncingDeadLetters) -> Answer:
    """Delete a dead letter for good, with its copy of the message."""
    await _require_one(request, dead_letters)
    await dead_letters.port.delete(request.namespace, request.number)
    return NO_CONTENT


async def replay_dead_letter(request: Plain, dead_letters: AnnouncingDeadLetters, gate: Gate) -> Answer:
    """Give a dead letter back to the subscription that failed it. If it is replayed twice, the second replay
    gets 404."""
    gate.require(request.namespace)
    await _require_one(request, dead_letters)
    name, message_id = await dead_letters.replay(request.namespace, request.number)
    return Answer(msgspec.json.encode(Replayed(request.number, name, message_id)))


async def list_dead_letters(
    request: Request[DeadLettersQuery], dead_letters: AnnouncingDeadLetters
) -> Answer:
    """List dead letters by id, the newest last, of the subscriptions that may be managed. `cursor` goes into
    the next request."""
    query = request.query
    which = DeadLetterFilter(
        request.namespace,
        check_channel(query.subscription, "subscription") if isinstance(query.subscription, str) else None,
        check_channel(query.channel, "channel") if isinstance(query.channel, str) else None,
        query.reason if isinstance(query.reason, Reason) else None,
    )
    names = granted_names(request.principal, which.subscription, Noun.SUBSCRIPTION, Action.MANAGE)
    read = partial(dead_letters.port.page, which, names_regex=names)
    return await page_by_id(DeadLetterPage, read, encode_dead_letter, query.cursor, query.limit)


async def replay_dead_letters(
    request: Request[DryRunQuery], dead_letters: AnnouncingDeadLetters, gate: Gate
) -> Answer:
    """Give back all dead letters that match, at most `max`. Dead letters that another replay holds are
    skipped. With a `rate` they become due one after the other, that many per second."""
    gate.require(request.namespace)
    asked = parse_replay(request.namespace, await read_json(request, required=True))
    _require(request, asked.which.subscription)
    dry_run = request.query.dry_run
    replayed, skipped = (
        await dead_letters.port.replayable(asked.which, asked.max)
        if dry_run
        else await dead_letters.replay_all(asked.which, asked.max, asked.rate)
    )
    return Answer(msgspec.json.encode(ReplayedAll(replayed, skipped, dry_run or UNSET)))


async def purge_dead_letters(request: Plain, dead_letters: AnnouncingDeadLetters) -> Answer:
    """Delete all dead letters that match and are old enough."""
    which = parse_purge(request.namespace, await read_json(request), datetime.now(UTC))
    _require(request, which.subscription)
    return Answer(msgspec.json.encode(answers.Purged(await dead_letters.port.purge(which))))


def encode_dead_letter(entry: delivery.DeadLetter) -> bytes:
    """One entry of the list, with the copy of its message."""
    shown = DeadLetter(
        id=entry.id,
        subscription=entry.subscription,
        channel=entry.message.channel,
        reason=entry.reason,
        attempts=entry.attempts,
        last_error=entry.last_error,
        created_at=rfc3339(entry.created_at_us).decode(),
        journey=stored(entry.journey),
        message=stored(encode_message(entry.message)),
        published=UNSET if entry.published is None else stored(entry.published),
        unroutable=or_unset(entry.unroutable),
    )
    return msgspec.json.encode(shown)
