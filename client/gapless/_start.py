"""Where reading begins: one word, `start`, for every call."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

Start = Literal["earliest", "latest"] | int | str | datetime
"""Where delivery begins: at `earliest` or `latest`, behind the message with this id, or with messages made at
or after a time, given as an aware datetime, as RFC 3339, or as an age such as `10m`, `2h`, `1d`."""


@dataclass(frozen=True, slots=True)
class Last:
    """A start of `subscribe`: the newest `count` messages of each channel, 1 to 1000."""

    count: int


def parameters_of(start: Start | Last | None) -> dict[str, Any]:
    """The start as the query parameter of a live subscription; none for None."""
    match start:
        case None:
            return {}
        case Last(count):
            return {"last": count}
        case int():
            return {"after": start}
        case "earliest" | "latest":
            return {"from": start}
        case _:
            return {"since": start}
