"""A live subscription as a state machine: what to hand out, where to resume, and how long to wait."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from gapless._calls.markers import Marker, marker_from
from gapless._calls.presence import Joined, Left, PresenceChanged, PresenceEvent, presence_event_from
from gapless._errors import HistoryLost
from gapless._lost import Gap
from gapless._models import Ephemeral, Message, ephemeral_from, gap_from, message_from
from gapless._retry import Break
from gapless._streams.interest import Interest
from gapless._streams.reconnect import Reconnects
from gapless._streams.stream import Resumable, log, member

OnGap = Literal["raise", "yield"] | Callable[[Gap], object]
"""What to do at lost history: raise `HistoryLost`, yield the `Gap`, or call this function and go on."""

Item = Message | Gap | Ephemeral | PresenceEvent | Marker

MAX_GAPS_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class _Ready:
    cursor: int


class Reading(Resumable[Item]):
    """Hands out each message once, in id order, over one connection after another.

    It is the same for event streams and for WebSocket; what a connection brings goes to `_accept`.
    """

    def __init__(
        self,
        interest: Interest,
        *,
        on_gap: OnGap = "raise",
        ephemeral: bool = False,
        give_up_after: float | None = None,
        renews_token: bool = False,
        chance: Callable[[], float],
    ) -> None:
        self.cursor = interest.cursor
        self._carried = interest.cursor is not None
        self._interest = interest
        self._on_gap = on_gap
        self._ephemeral = ephemeral
        self._reconnects = Reconnects(give_up_after=give_up_after, renews_token=renews_token, chance=chance)
        self._waiting: deque[Item | _Ready] = deque()
        self._gaps: OrderedDict[str, int] = OrderedDict()
        self._goodbye: str | None = None
        self._opened_ever = False

    @property
    def started(self) -> bool:
        return self._opened_ever and (self.cursor is not None or bool(self._waiting))

    @property
    def leaving(self) -> bool:
        return self._goodbye is not None

    @property
    @abstractmethod
    def retry_ms(self) -> int | None:
        """The pause that the server asked for before the next connection, in milliseconds."""

    def _began(self, now: float) -> None:
        """A connection is open."""
        self._opened_ever = True
        self._reconnects.opened(now)

    def _accept(self, kind: str, content: Any) -> None:
        """Takes an event of this kind. Raises `ProtocolError`."""
        match kind:
            case "message":
                self._waiting.append(message_from(content))
            case "ready":
                self._accept_ready(member(kind, content, "cursor", int))
            case "gap":
                self._waiting.append(gap_from(content))
            case "ephemeral":
                self._waiting.append(ephemeral_from(content))
            case "marker":
                self._waiting.append(marker_from(content))
            case "join" | "leave" | "presence":
                self._waiting.append(presence_event_from(kind, content))
            case "goodbye":
                self._goodbye = member(kind, content, "reason", str)
            case _:
                pass  # The events of later versions are for others.

    def _accept_ready(self, cursor: int) -> None:
        # It has to wait behind messages not yet handed out, else the cursor would skip them.
        if self._waiting:
            self._waiting.append(_Ready(cursor))
        else:
            self._advance(cursor)

    def take(self) -> Item | None:
        while self._waiting:
            item = self._waiting.popleft()
            match item:
                case Message():
                    # A cursor of other channels does not exclude that a lower id is committed later.
                    if self.cursor is None or item.id > self.cursor or self._carried:
                        self._reconnects.progressed()
                        self._carried = False
                        self.cursor = item.id
                        return item
                case Gap():
                    if item.ids is not None:
                        # What follows may lie below a cursor of another history.
                        self._carried = True
                    if self._is_news(item) and self._settle(item):
                        return item
                case Ephemeral() | Joined() | Left() | PresenceChanged() | Marker():
                    return item
                case _Ready():
                    self._advance(item.cursor)
        return None

    def _advance(self, cursor: int) -> None:
        if self.cursor is None or self._carried or cursor > self.cursor:
            self.cursor = cursor
        self._carried = False

    def _is_news(self, gap: Gap) -> bool:
        """Whether the gap was not reported before a reconnect already."""
        name, upto = ("", gap.ids[1]) if gap.ids is not None else (gap.channel, gap.first_seq)
        if self._gaps.get(name, -1) >= upto:
            return False
        self._gaps[name] = upto
        self._gaps.move_to_end(name)
        if len(self._gaps) > MAX_GAPS_REMEMBERED:
            self._gaps.popitem(last=False)
        return True

    def _settle(self, gap: Gap) -> bool:
        """Does at a gap what the caller asked for; True if the gap is to be yielded."""
        if callable(self._on_gap):
            self._on_gap(gap)
            return False
        if self._on_gap == "yield":
            return True
        raise HistoryLost.of(gap)

    def lost(self, cause: Break, now: float) -> float | None:
        goodbye, self._goodbye = self._goodbye, None
        pause = self._reconnects.lost(cause, now, goodbye=goodbye, retry_ms=self.retry_ms)
        log.info(
            "subscription lost (%s), resuming from %s in %.2f s", pause.reason, self.cursor, pause.seconds
        )
        return pause.seconds
