"""The options of `subscribe`, and the request that opens the stream at a position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypedDict

from gapless._call import Params, Request, params_from

SILENT_HEARTBEATS = 2.5
"""A connection without a byte for this many heartbeats is treated as dead."""


class SubscribeOptions(TypedDict, total=False):
    """Options of `subscribe`. Give at most one start: `after`, `last`, `since` or `from_`.

    `after` is an id. `last` is a number: the stream starts with the newest messages of each channel. `since`
    is an aware datetime or an age such as `10m`, `2h`, `1d`. Without a start only new messages come. `types`
    and `keys` let only messages with these through. `heartbeat`: whole seconds, 5 to 60, between the server's
    signs of life. `give_up_after`: seconds of retries without the service before an error is raised; None is
    for ever.
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
    """Channels or patterns, a start and filters. Raises `ValueError` for options that do not fit."""

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
        """Opens the stream behind `cursor`, or at the chosen start while there is no cursor yet."""
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
