"""Publishing over REST: `POST /v1/channels/{channel}/messages` and `POST /v1/messages`."""

from __future__ import annotations

import time
from typing import Final

import msgspec
from starlette.types import Receive, Scope, Send

from app.http_answers import answer_json
from app.telemetry import PUBLISH_SECONDS, PUBLISHED, REQUESTS
from app.wire.body import read_body
from app.wire.checks import MAX_TTL_S as MAX_AHEAD_S
from app.wire.deliveries import encode_scheduled_at
from app.wire.encode import encode_ephemeral, encode_positions
from app.wire.fingerprint import fingerprint
from app.wire.head import PublishHead, read_head
from app.wire.publish import Publication, Schedule, parse_batch, parse_publication
from app.wiring import Service
from subscriptions.domain.errors import Code, GaplessError, invalid
from subscriptions.domain.model import Append, Appended, NewMessage
from subscriptions.engine.hints import EphemeralHint

_CREATED: Final = REQUESTS.labels("publish", 201)
_ACCEPTED: Final = REQUESTS.labels("publish", 202)


async def publish_one(service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    """One message, or an array of them, to one channel."""
    channel = scope["path"][len("/v1/channels/") : -len("/messages")]
    head = read_head(scope["headers"])
    body = await read_body(receive, head)
    publication = parse_publication(channel, head, body)
    if publication.ephemeral:
        await _ephemeral(service, publication.messages[0], head, scope, send)
        return
    if publication.schedules:
        # Also where its time has come already: the answer's form must not hang on whose clock is ahead.
        for schedule in publication.schedules:
            _check_schedule(schedule, head, time.time_ns() // 1000)
        await _later(service, publication, head, scope, body, send)
        return
    appended = await _append(service, publication.messages, head, scope, body)
    content = encode_positions(appended.positions)
    if publication.is_array:
        content = b'{"messages":[%b]}' % content
    await _created(appended, content, scope, send)


async def publish_many(service: Service, scope: Scope, receive: Receive, send: Send) -> None:
    """Messages to several channels, atomically."""
    head = read_head(scope["headers"])
    if head.expected_last_seq is not None:
        detail = "Expected-Last-Seq speaks of one channel: publish to /v1/channels/{channel}/messages"
        raise GaplessError(Code.INVALID_REQUEST, detail, status=400)
    body = await read_body(receive, head)
    appended = await _append(service, parse_batch(head, body), head, scope, body)
    content = b'{"messages":[%b]}' % encode_positions(appended.positions)
    await _created(appended, content, scope, send)


async def _append(
    service: Service, messages: tuple[NewMessage, ...], head: PublishHead, scope: Scope, body: bytes
) -> Appended:
    printed = b""
    if head.idempotency_key is not None:
        printed = fingerprint(scope["path"], head, body)
    began = time.perf_counter()
    appended = await service.publisher.publish(
        Append(
            service.namespace,
            messages,
            head.idempotency_key,
            printed,
            head.expected_last_seq,
            len(body),
        )
    )
    PUBLISH_SECONDS.observe(time.perf_counter() - began)
    if not appended.replayed:
        PUBLISHED.inc(len(messages))
    return appended


async def _created(appended: Appended, content: bytes, scope: Scope, send: Send) -> None:
    _CREATED.inc()
    await answer_json(scope, send, 201, content, replayed=appended.replayed)


async def _ephemeral(
    service: Service, message: NewMessage, head: PublishHead, scope: Scope, send: Send
) -> None:
    if head.expected_last_seq is not None:
        detail = "an ephemeral message has no place in the channel: Expected-Last-Seq does not apply"
        raise GaplessError(Code.INVALID_REQUEST, detail, status=400)
    body = encode_ephemeral(message, time.time_ns() // 1000)
    service.publish_ephemeral(
        EphemeralHint(service.namespace, message.channel, message.type, message.key, body)
    )
    content = b'{"channel":%b,"ephemeral":true}' % msgspec.json.encode(message.channel)
    await _accepted(content, scope, send, replayed=False)


async def _accepted(content: bytes, scope: Scope, send: Send, *, replayed: bool) -> None:
    _ACCEPTED.inc()
    await answer_json(scope, send, 202, content, replayed=replayed)


def _check_schedule(schedule: Schedule, head: PublishHead, now_us: int) -> None:
    """Raises `invalid_request`."""
    name = "delay" if schedule.deliver_at_us is None else "deliver_at"
    if head.expected_last_seq is not None:
        raise invalid(name, "cannot be given together with Expected-Last-Seq: nobody knows that seq yet")
    if schedule.deliver_at_us is not None and schedule.deliver_at_us > now_us + MAX_AHEAD_S * 1_000_000:
        raise invalid(name, "is more than ten years ahead")


async def _later(
    service: Service,
    publication: Publication,
    head: PublishHead,
    scope: Scope,
    body: bytes,
    send: Send,
) -> None:
    service.require_ready()
    printed = b"" if head.idempotency_key is None else fingerprint(scope["path"], head, body)
    scheduled, replayed = await service.schedules.schedule(
        service.namespace, publication.messages, publication.schedules, head.idempotency_key, printed
    )
    content = b",".join(map(encode_scheduled_at, scheduled))
    if publication.is_array:
        content = b'{"messages":[%b]}' % content
    await _accepted(content, scope, send, replayed=replayed)
