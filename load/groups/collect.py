"""Reads the log, the dead letters and the dead-letter channels after a run."""

from __future__ import annotations

from typing import Any

import msgspec

from load.api import Api
from load.groups import plan
from load.groups.history import DeadLetter, Groups, Message
from load.groups.notes import moment

PAGE = 1000


async def collect(api: Api, history: Groups) -> None:
    """Read everything through the API into the history."""
    for channel in plan.WEIGHTS:
        history.messages += [_message(each) for each in await _log(api, channel)]
    for channel in sorted({g.dead_letter for g in history.groups.values() if g.dead_letter is not None}):
        history.copies += [each["id"] for each in await _log(api, channel)]
    made = [each["data"] for each in await _log(api, plan.PRODUCTS)]
    history.products += [(data["group"], data["of"]) for data in made]
    cursor: Any = 0
    more = True
    while more:
        page = await api.call("GET", f"/v1/dead-letters?limit={PAGE}&cursor={cursor}")
        history.dead_letters += [_dead_letter(each) for each in page["dead_letters"]]
        cursor, more = page["cursor"], page["has_more"]


async def _log(api: Api, channel: str) -> list[dict[str, Any]]:
    """All messages of a channel; empty if it does not exist."""
    path = f"/v1/channels/{channel}"
    known = await api.call("GET", f"/v1/channels?pattern={channel}")
    if not known["channels"]:
        return []
    lines = await api.raw("GET", f"{path}/messages?after=0", Accept="application/x-ndjson")
    return [msgspec.json.decode(line) for line in lines.splitlines()]


def _message(each: dict[str, Any]) -> Message:
    expires = each.get("expires_at")
    return Message(
        each["id"], each["channel"], each["seq"], each.get("key"), moment(each["created_at"]),
        each["data"]["n"], None if expires is None else moment(expires),
    )  # fmt: skip


def _dead_letter(each: dict[str, Any]) -> DeadLetter:
    copy = each.get("published")
    return DeadLetter(
        each["id"], each["subscription"], each["message"]["id"], each["reason"], each["attempts"],
        moment(each["created_at"]), None if copy is None else copy["id"], "unroutable" in each,
    )  # fmt: skip
