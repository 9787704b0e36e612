"""Publishing over REST: `POST /v1/channels/{channel}/messages` and `POST /v1/messages`."""

from __future__ import annotations

import time
from hashlib import blake2b
from typing import Annotated

import msgspec
from msgspec import Meta

from app.api.answers import Position, Time
from app.http.body import read_body
from app.http.request import Answer, Plain
from app.message.changes import check_sendable
from app.message.head import PublishHead, read_head
from app.message.message import encode_ephemeral, encode_positions
from app.message.publish import Publication, parse_batch, parse_publication, refuse_expectation
from app.message.times import rfc3339
from app.metrics.registry import PUBLISH_SECONDS, PUBLISHED, count
from subscriptions.domain.delivery import Scheduled
from subscriptions.domain.model import Append, Appended, NewMessage
from subscriptions.engine.durable.announcing import AnnouncingSchedule
from subscriptions.engine.exchange import Exchange
from subscriptions.engine.gate import Gate
from subscriptions.engine.hints import EphemeralHint
from subscriptions.engine.publisher import Publisher

_REPLAYED = ((b"idempotent-replayed", b"true"),)


class Positions(msgspec.Struct):
    """Where messages were stored, in the order in which they were sent."""

    messages: list[Position]


class EphemeralSent(msgspec.Struct):
    """A message that was sent to live subscribers and not stored."""

    channel: str
    ephemeral: bool


class ScheduledAt(msgspec.Struct):
    """A message that will be published."""

    scheduled_id: Annotated[str, Meta(examples=["7"])]
    channel: str
    deliver_at: Time


class ScheduledAtAll(msgspec.Struct):
    """Messages that will be published, in the order in which they were sent."""

    messages: list[ScheduledAt]


async def publish(
    request: Plain, publisher: Publisher, exchange: Exchange, schedules: AnnouncingSchedule, gate: Gate
) -> Answer:
    """Publish one message, or an array of 1 to 1000 that become visible together. The answer comes after the
    commit."""
    head = read_head(request.scope["headers"])
    body = await read_body(request.receive, head)
    now_us = time.time_ns() // 1000
    publication = parse_publication(request.name, head, body, request.principal, now_us=now_us)
    messages = publication.messages
    check_sendable(request.principal, messages)
    if publication.ephemeral:
        return _ephemeral(request, messages[0], exchange)
    if publication.schedules:
        # Even if its time is past: the form of the answer must not depend on whose clock is ahead.
        return await _later(request, publication, head, body, schedules, gate)
    appended = await _append(request, messages, head, body, publisher)
    content = encode_positions(appended.positions)
    return committed(b'{"messages":[%b]}' % content if publication.is_array else content, appended)


async def publish_batch(request: Plain, publisher: Publisher) -> Answer:
    """Publish to several channels, atomically."""
    head = read_head(request.scope["headers"], events=False)
    refuse_expectation(head)
    body = await read_body(request.receive, head)
    messages = parse_batch(head, body, request.principal)
    check_sendable(request.principal, messages)
    appended = await _append(request, messages, head, body, publisher)
    return committed(b'{"messages":[%b]}' % encode_positions(appended.positions), appended)


def committed(content: bytes, appended: Appended) -> Answer:
    """The answer to what was published."""
    return Answer(content, 201, _REPLAYED if appended.replayed else ())


async def _append(
    request: Plain, messages: tuple[NewMessage, ...], head: PublishHead, body: bytes, publisher: Publisher
) -> Appended:
    printed = b""
    if head.idempotency_key is not None:
        printed = fingerprint(request.path, head, body)
    began = time.perf_counter()
    appended = await publisher.submit(
        Append(
            request.namespace,
            messages,
            request.principal.own_key(head.idempotency_key),
            printed,
            head.expected_last_seq,
            len(body),
            head.expected_version is not None,
        )
    )
    PUBLISH_SECONDS.observe(time.perf_counter() - began)
    if not appended.replayed:
        count(PUBLISHED, len(messages))
    return appended


def _ephemeral(request: Plain, message: NewMessage, exchange: Exchange) -> Answer:
    body = encode_ephemeral(message, time.time_ns() // 1000)
    exchange.publish_ephemeral(
        EphemeralHint(request.namespace, message.channel, message.type, message.key, body)
    )
    return Answer(b'{"channel":%b,"ephemeral":true}' % msgspec.json.encode(message.channel), 202)


async def _later(
    request: Plain,
    publication: Publication,
    head: PublishHead,
    body: bytes,
    schedules: AnnouncingSchedule,
    gate: Gate,
) -> Answer:
    gate.require(request.namespace)
    printed = b"" if head.idempotency_key is None else fingerprint(request.path, head, body)
    key = request.principal.own_key(head.idempotency_key)
    scheduled, replayed = await schedules.schedule(
        request.namespace, publication.messages, publication.schedules, key, printed, request.principal
    )
    content = b",".join(map(encode_scheduled_at, scheduled))
    if publication.is_array:
        content = b'{"messages":[%b]}' % content
    return Answer(content, 202, _REPLAYED if replayed else ())


def fingerprint(path: str, head: PublishHead, body: bytes) -> bytes:
    """Tells whether two requests with one Idempotency-Key are the same: a hash of 16 bytes over the request's
    target, its body's form, the body, and an event's headers."""
    digest = blake2b(digest_size=16)
    for part in (path.encode(), head.form.value.encode(), body, msgspec.json.encode(sorted(head.event))):
        digest.update(b"%d:" % len(part))
        digest.update(part)
    for _, value in sorted(head.event.items()):
        digest.update(b"%d:" % len(value) + value)
    return digest.digest()


def encode_scheduled_at(scheduled: Scheduled) -> bytes:
    """The answer to the request that scheduled it."""
    return b'{"scheduled_id":"%d","channel":"%b","deliver_at":"%b"}' % (
        scheduled.id,
        scheduled.message.channel.encode(),
        rfc3339(scheduled.deliver_at_us),
    )
