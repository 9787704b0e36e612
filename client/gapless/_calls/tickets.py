"""The call that makes a ticket."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gapless._call import Call, asking
from gapless._errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Ticket:
    """A secret that stands for a credential once, until `expires_at`: it opens one stream as `?ticket=`."""

    ticket: str = field(repr=False)
    expires_at: datetime


def create(channels: Sequence[str] | None, subscription: str | None) -> Call[Ticket]:
    """Makes a ticket. An answer that was lost costs an unused ticket, so it is repeated."""
    if isinstance(channels, str):
        raise ValueError("channels is a list of names and patterns, not one text")
    body: dict[str, Any] = {}
    if channels is not None:
        body["channels"] = list(channels)
    if subscription is not None:
        body["subscription"] = subscription
    return asking("POST", "/v1/tickets", ticket_from, body)


def ticket_from(raw: Any) -> Ticket:
    """A `Ticket` from its JSON object. Raises `ProtocolError`."""
    try:
        return Ticket(str(raw["ticket"]), datetime.fromisoformat(raw["expires_at"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError("not a ticket") from error
