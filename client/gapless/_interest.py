"""What a subscription asks for, and the request that opens it at a position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypedDict

from gapless._call import Params, Request, params_from

SILENT_HEARTBEATS = 2.5
"""A connection that brings no byte for this many heartbeats is taken for dead."""


class SubscribeOptions(TypedDict, total=False):
    """At most one start: `after` an id, with the `last` n of each channel, `since` a time, or `from_`.

    `since` is an aware datetime or an age such as `10m`, `2h`, `1d`; without a start only new messages come.
    `types` and `keys` let only those through. `heartbeat`: every so many whole seconds (5 to 60) the server
    shows that it is alive. `give_up_after` is how long, in seconds, to go on without the service before
    raising; None is for ever.
    """

    after: int | None
    last: int | None
    since: datetime | str | None
    from_: Literal["earliest", "latest"] | None
    types: Sequence[str] | None
    keys: Sequence[str] | None
    heartbeat: int
    give_up_after: float | None


@dataclass(frozen=True, slots=True)
class Interest:
    """Channels or patterns, where to start, what to let through. Raises `ValueError` when it is none."""

    channels: tuple[str, ...]
    after: int | None = None
    last: int | None = None
    since: datetime | str | None = None
    from_: Literal["earliest", "latest"] | None = None
    types: Sequence[str] | None = None
    keys: Sequence[str] | None = None
    heartbeat: float = 15.0

    def __post_init__(self) -> None:
        if not self.channels:
            raise ValueError("a subscription needs at least one channel or pattern")
        if sum(start is not None for start in (self.after, self.last, self.since, self.from_)) > 1:
            raise ValueError("a subscription starts at one of after, last, since and from_")
        if not self.heartbeat > 0:
            raise ValueError("the heartbeat must be positive")
        self._start()  # A `since` that cannot be written is refused here, not when the stream opens.

    def request(self, cursor: int | None) -> Request:
        """Opens the stream behind `cursor`, or where the interest starts while there is none yet."""
        headers = {
            "Accept": "text/event-stream",
            "Cache-Control": "no-store",
            # A compressing proxy would hold events back until its window fills.
            "Accept-Encoding": "identity",
        }
        if cursor is not None:
            headers["Last-Event-ID"] = str(cursor)
        start = self._start() if cursor is None else ()
        return Request(
            "GET",
            "/v1/subscribe",
            params_from({"channel": self.channels}) + start + self._filters(),
            headers,
            silence_seconds=self.heartbeat * SILENT_HEARTBEATS,
        )

    def _start(self) -> Params:
        starts = {"after": self.after, "last": self.last, "since": self.since, "from": self.from_}
        return params_from(starts)

    def _filters(self) -> Params:
        return params_from({"type": self.types, "key": self.keys, "heartbeat": f"{self.heartbeat:g}"})
