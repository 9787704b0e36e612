"""Publishing over REST: `POST /v1/channels/{channel}/messages` and `POST /v1/messages`."""

from __future__ import annotations

import time

import msgspec

from app.http.body import read_body
from app.http.request import Answer, Plain
from app.message.deliveries import encode_scheduled_at
from app.message.fingerprint import fingerprint
from app.message.head import PublishHead, read_head
from app.message.message import encode_ephemeral, encode_positions
from app.message.publish import Publication, parse_batch, parse_publication, refuse_expectation
from app.metrics.registry import PUBLISH_SECONDS, PUBLISHED, count
from subscriptions.domain.model import Append, Appended, NewMessage
from subscriptions.engine.durable.announcing import AnnouncingSchedule
from subscriptions.engine.exchange import Exchange
from subscriptions.engine.gate import Gate
from subscriptions.engine.hints import EphemeralHint
from subscriptions.engine.publisher import Publisher

_REPLAYED = ((b"idempotent-replayed", b"true"),)


async def publish(
    request: Plain, publisher: Publisher, exchange: Exchange, schedules: AnnouncingSchedule, gate: Gate
) -> Answer:
    """Publish one message, or an array of 1 to 1000 that become visible together. The answer comes after the
    commit."""
    head = read_head(request.scope["headers"])
    body = await read_body(request.receive, head)
    publication = parse_publication(request.name, head, body, now_us=time.time_ns() // 1000)
    if publication.ephemeral:
        return _ephemeral(request, publication.messages[0], exchange)
    if publication.schedules:
        # Even if its time is past: the form of the answer must not depend on whose clock is ahead.
        return await _later(request, publication, head, body, schedules, gate)
    appended = await _append(request, publication.messages, head, body, publisher)
    content = encode_positions(appended.positions)
    return committed(b'{"messages":[%b]}' % content if publication.is_array else content, appended)


async def publish_batch(request: Plain, publisher: Publisher) -> Answer:
    """Publish to several channels, atomically."""
    head = read_head(request.scope["headers"])
    refuse_expectation(head)
    body = await read_body(request.receive, head)
    appended = await _append(request, parse_batch(head, body), head, body, publisher)
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
            head.idempotency_key,
            printed,
            head.expected_last_seq,
            len(body),
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
    gate.require()
    printed = b"" if head.idempotency_key is None else fingerprint(request.path, head, body)
    scheduled, replayed = await schedules.schedule(
        request.namespace, publication.messages, publication.schedules, head.idempotency_key, printed
    )
    content = b",".join(map(encode_scheduled_at, scheduled))
    if publication.is_array:
        content = b'{"messages":[%b]}' % content
    return Answer(content, 202, _REPLAYED if replayed else ())
