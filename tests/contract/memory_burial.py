"""What is left of a message that a subscription gives up on: an entry, its journey, and a copy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from subscriptions.domain.delivery import DeadLetter, Reason, Subscription
from subscriptions.domain.model import Message, NewMessage, Position
from subscriptions.domain.names import is_channel

HOPS = 1000
JOURNEY = "gapless-journey"


@dataclass(frozen=True, slots=True)
class Entry:
    """A dead letter, and the channel that its message is of. `keep_s`: for how long it stays."""

    namespace: str
    channel_id: int
    letter: DeadLetter
    keep_s: float | None = None


@dataclass(frozen=True, slots=True)
class Death:
    """A message that is given up. It has no row any more. `entry`: a replay had given it back."""

    message: Message
    reason: Reason
    attempts: int = 0
    last_error: str | None = None
    entry: Entry | None = None


def letter_of(
    id_: int, subscription: Subscription, death: Death, now_us: int
) -> tuple[DeadLetter, str | None]:
    """The dead letter, and the channel that its copy is published to."""
    template = (subscription.settings.get("dead_letter") or {}).get("channel")
    target = template and template.replace("{channel}", death.message.channel).replace(
        "{subscription}", subscription.name
    )
    journey = _journey(subscription.name, death, now_us)
    reason, obstacle = death.reason, None
    if target is not None and sum(step["count"] for step in journey) > HOPS:
        reason, obstacle = Reason.HOPS, f"the journey has counted {HOPS} hops"
    elif target is not None and not is_channel(target):
        obstacle = f"no channel can be named {target[:300]}"
    letter = DeadLetter(
        id=id_,
        subscription=subscription.name,
        reason=reason,
        attempts=death.attempts,
        last_error=death.last_error,
        created_at_us=now_us,
        journey=json.dumps(journey).encode(),
        message=death.message,
        unroutable=obstacle,
    )
    return letter, None if obstacle else target


def copy_of(letter: DeadLetter, target: str) -> NewMessage:
    """What is published to the dead-letter channel."""
    message = letter.message
    headers = json.loads(message.headers or b"{}") | {JOURNEY: letter.journey.decode()}
    return NewMessage(
        target,
        message.data,
        binary=message.binary,
        type=message.type,
        key=message.key,
        headers=json.dumps(headers).encode(),
        sender=message.sender,
    )


def published(position: Position) -> bytes:
    """Where the copy went."""
    return json.dumps({"channel": position.channel, "id": position.id, "seq": position.seq}).encode()


def _journey(subscription: str, death: Death, now_us: int) -> list[dict[str, Any]]:
    """The deaths so far and this one. They are known here, or in the headers."""
    known = death.entry.letter.journey if death.entry is not None else None
    steps: list[dict[str, Any]] = json.loads(
        known or json.loads(death.message.headers or b"{}").get(JOURNEY, "[]")
    )
    stamp = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=now_us)).strftime(
        "%Y-%m-%dT%H:%M:%S.%fZ"
    )
    step = {"subscription": subscription, "channel": death.message.channel, "reason": death.reason.value}
    for before in steps:
        if step.items() <= before.items():
            before["count"] += 1
            before["last_at"] = stamp
            return steps
    return [*steps, step | {"count": 1, "first_at": stamp, "last_at": stamp}]
