"""The options of `subscribe`, and the request that opens the stream at a position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from gapless._call import Params, Request, params_from
from gapless._calls.subscription import Changes
from gapless._start import Last, Start, parameters_of

SILENT_HEARTBEATS = 2.5
"""A connection without a byte for this many heartbeats is treated as dead."""


class SubscribeOptions(TypedDict, total=False):
    """Options of `subscribe`.

    `start`: behind the message with this id; at `earliest`; with messages not older than a time, given as an
    aware datetime, as RFC 3339, or as an age such as `10m`, `2h`, `1d`; or `Last(n)`, the newest n messages
    of each channel. The default is `latest`: only new messages come. `types` and `keys` let only messages
    with these through, `changes` those that change others with the rest, not at all (`none`) or `only` them.
    `heartbeat`: whole seconds, 5 to 60, between the server's
    signs of life. `give_up_after`: seconds of retries without the service before an error is raised; None is
    for ever.
    """

    start: Start | Last | None
    types: Sequence[str] | None
    keys: Sequence[str] | None
    changes: Changes | None
    heartbeat: int
    give_up_after: float | None


@dataclass(frozen=True, slots=True)
class Interest:
    """Channels or patterns, a start and filters. Raises `ValueError` for options that do not fit."""

    channels: tuple[str, ...]
    start: Start | Last | None = None
    types: Sequence[str] | None = None
    keys: Sequence[str] | None = None
    changes: Changes | None = None
    heartbeat: float = 15.0
    markers: bool = False

    def __post_init__(self) -> None:
        if not self.channels:
            raise ValueError("a subscription needs at least one channel or pattern")
        if not self.heartbeat > 0:
            raise ValueError("the heartbeat must be positive")
        self._start()  # A time that cannot be written is refused here, not when the stream opens.

    @property
    def cursor(self) -> int | None:
        """The id behind which reading begins, if the start says one."""
        return self.start if isinstance(self.start, int) else None

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

    def start_members(self) -> dict[str, Any]:
        """The start as a member of a command; none at `latest`, the default. It is no id."""
        match self.start:
            case Last(count):
                return {"last": count}
            case None | "latest":
                return {}
            case _:
                return dict(self._start())

    def _start(self) -> Params:
        return params_from(parameters_of(self.start))

    def _filters(self) -> Params:
        given = {"type": self.types, "key": self.keys, "changes": self.changes}
        markers = "true" if self.markers else None
        return params_from({**given, "heartbeat": f"{self.heartbeat:g}", "markers": markers})
