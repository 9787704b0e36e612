"""What dead letters and their copies tell."""

from __future__ import annotations

import json
from typing import Any

from subscriptions.domain.delivery import DeadLetter
from tests.race.queues import Queues


def journey(letter: DeadLetter) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = json.loads(letter.journey)
    return steps


def told(letter: DeadLetter) -> list[tuple[str, str, str, int]]:
    """The journey without its times."""
    return [(s["subscription"], s["channel"], s["reason"], s["count"]) for s in journey(letter)]


async def copies(queues: Queues, channel: str) -> list[Any]:
    found: list[Any] = await queues.owner.fetch(
        "select m.* from gapless.messages m join gapless.channels c on c.id = m.channel_id"
        " where c.name = $1 order by m.id",
        channel,
    )
    return found
