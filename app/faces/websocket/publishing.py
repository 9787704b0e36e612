"""The command `publish`: a message is confirmed once it is committed."""

from __future__ import annotations

import time

from msgspec import UNSET

from app.faces.websocket.commands import Command
from app.faces.websocket.replies import Replies
from app.message import json
from app.message.changes import check_sendable
from app.message.message import encode_ephemeral, encode_positions
from app.message.publish import parse_addressed
from app.message.refusals import FAILURES, refuse
from app.metrics.registry import PUBLISHED, count
from subscriptions.domain.model import Append, Appended
from subscriptions.domain.principal import Principal
from subscriptions.engine.exchange import Exchange
from subscriptions.engine.hints import EphemeralHint
from subscriptions.engine.publisher import Publisher


def publish(
    command: Command,
    line: bytes,
    principal: Principal,
    replies: Replies,
    publisher: Publisher,
    exchange: Exchange,
) -> None:
    """Queue a publish; the reply comes after the commit. Publishes of one client are stored in the order of
    its commands. Raises the errors of a publish."""
    assert command.publish is not UNSET, "the command is a publish"
    json.check_parts(line)
    try:
        message, keys = parse_addressed(command.publish, principal, line)
    except FAILURES as error:
        refuse(line, error)
    json.check_text(line, keys + 1 + (command.id is not UNSET))
    messages = (message,)
    check_sendable(principal, messages)
    id_ = command.id or 0
    if message.ephemeral:
        body = encode_ephemeral(message, time.time_ns() // 1000)
        hint = EphemeralHint(principal.namespace, message.channel, message.type, message.key, body)
        exchange.publish_ephemeral(hint)
        replies.answer(id_, b"publish", b"{}")
        return

    def committed(appended: Appended) -> None:
        count(PUBLISHED, 1)
        replies.answer(id_, b"publish", encode_positions(appended.positions))

    append = Append(principal.namespace, messages, None, b"", None, len(line))
    replies.await_result(id_, publisher.submit(append), committed)
