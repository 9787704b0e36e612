"""Streams over WebSocket as state machines: the command that opens each, and what its pushes mean."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from gapless._calls.subscription import Changes
from gapless._config import Config
from gapless._effects import Sources
from gapless._errors import GaplessError, ProtocolError
from gapless._lost import Gap
from gapless._options import known
from gapless._start import Last, Start
from gapless._streams.commands import Command
from gapless._streams.consuming import Membership
from gapless._streams.interest import Interest
from gapless._streams.leases import Lease
from gapless._streams.reading import Item, OnGap, Reading
from gapless._streams.stream import Resumable

T = TypeVar("T")

Address = tuple[str, str]
"""To which stream of a connection a push goes: the name of a member, and its value."""

PRESENCE = ("join", "leave", "presence")
"""The pushes about who is on a channel."""
_OWN = ("on_gap", "ephemeral", "presence", "markers")
"""The options that `subscribe` itself names."""
SUBSCRIBE_AGAIN = 2500
"""From this code on, a subscription that the server ended is opened again."""


class ConnectedSubscribeOptions(TypedDict, total=False):
    """Options of `subscribe` over WebSocket.

    They are those of `SubscribeOptions`, without the heartbeat: pings are for all of a connection.
    """

    start: Start | Last | None
    types: Sequence[str] | None
    keys: Sequence[str] | None
    changes: Changes | None
    give_up_after: float | None


class ConnectedConsumeOptions(TypedDict, total=False):
    """The options of `ConsumeOptions`, without the heartbeat: pings are for all of a connection."""

    prefetch: int
    max_hold: float
    raise_lost: bool
    on_gap: Callable[[Gap], object] | None
    give_up_after: float | None


class PushStream(Resumable[T]):
    """A resumable sequence whose connections are subscriptions of one WebSocket.

    The order of calls: `opening` gives the command to send. `replied` takes the reply. `push` takes the
    pushes, and `take` gives the items. `leave` says that no more pushes will come. Each may raise the
    `GaplessError` that ends the stream.
    """

    bounded: bool
    """Whether the server itself limits how many pushes may wait."""
    settled = False
    """Whether nobody gets again what was pushed, so that none of it may be passed over."""

    @abstractmethod
    def address(self, number: int) -> Address:
        """Where its pushes go. No other stream of the connection has this number."""

    @abstractmethod
    def opening(self, address: Address) -> Command: ...

    @abstractmethod
    def ending(self, address: Address) -> Command: ...

    @abstractmethod
    def replied(self, content: Any, date: str | None, now: float) -> None: ...

    @abstractmethod
    def push(self, content: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def leave(self, reason: str) -> None: ...


class PushReader(Reading, PushStream[Item]):
    """Reads the publications of one subscription after another.

    It subscribes with a selection, also to one channel: the offsets of a selection are ids, so its cursor
    holds for the other streams of the client too. Each subscription has a name of its own, so that late
    pushes of the one before are recognized.
    """

    bounded = False
    retry_ms = None

    def __init__(
        self, interest: Interest, *, presence: bool = False, chance: Callable[[], float], **options: Any
    ) -> None:
        super().__init__(interest, chance=chance, **options)
        self._presence = presence
        self._from_earliest = interest.start == "earliest"

    def address(self, number: int) -> Address:
        return "channel", f"s{number}"

    def opening(self, address: Address) -> Command:
        interest = self._interest
        selection: dict[str, Any] = {
            "channel": interest.channels,
            "type": interest.types or (),
            "key": interest.keys or (),
        }
        if interest.changes is not None:
            selection["changes"] = interest.changes
        if self.cursor is None and not self._from_earliest:
            selection |= interest.start_members()
        asked: dict[str, Any] = {"channel": address[1], "selection": selection}
        if self._presence:
            asked["join_leave"] = True
        if interest.markers:
            asked["markers"] = True
        if self.cursor is not None or self._from_earliest:
            asked |= {"recover": True, "offset": self.cursor or 0}
        return Command.of("subscribe", asked)

    def ending(self, address: Address) -> Command:
        return Command.of("unsubscribe", {"channel": address[1]})

    def replied(self, content: Any, date: str | None, now: float) -> None:
        offset = content.get("offset") if isinstance(content, dict) else None
        if not isinstance(offset, int):
            raise ProtocolError(f"not the reply to a subscribe: {content!r:.200}")
        self._began(now)
        # With another start, what it says is the place before the first message, which may lie far below
        # the newest ones of some channels: the first message, or `ready`, is the place.
        if self.cursor is None and self._interest.start in (None, "latest"):
            self._accept("ready", {"cursor": offset})

    def push(self, content: Mapping[str, Any]) -> None:
        if self._goodbye is not None:
            return
        if (pub := content.get("pub")) is not None:
            if isinstance(pub, dict) and "offset" not in pub:
                if self._ephemeral:
                    self._accept("ephemeral", pub)
            else:
                self._accept("message", pub)
        elif (gap := content.get("gap")) is not None:
            if not self._lies_before_earliest(gap):
                self._accept("gap", gap)
        elif (ready := content.get("ready")) is not None:
            self._from_earliest = False
            self._accept("ready", ready)
        elif self._interest.markers and (marker := content.get("marker")) is not None:
            self._accept("marker", marker)
        elif self._presence and (kind := next((one for one in PRESENCE if one in content), None)):
            self._accept(kind, content[kind])
        elif (ended := content.get("unsubscribe")) is not None:
            self._unsubscribed(ended)

    def leave(self, reason: str) -> None:
        self._goodbye = reason

    def _lies_before_earliest(self, gap: Any) -> bool:
        """Whether the gap only says that the earliest message is not the first that there ever was."""
        if not (self._from_earliest and isinstance(gap, dict) and "first_seq" in gap):
            return False
        return bool(gap.get("missed") == gap["first_seq"] - 1)

    def _unsubscribed(self, ended: Any) -> None:
        code = ended.get("code") if isinstance(ended, dict) else None
        if not isinstance(code, int):
            raise ProtocolError(f"not the end of a subscription: {ended!r:.200}")
        reason = str(ended.get("reason") or code)
        if code < SUBSCRIBE_AGAIN:
            raise GaplessError(f"the server ended the subscription: {reason}", code=f"unsubscribed_{code}")
        self.leave(reason)


class PushMembership(Membership, PushStream[Lease]):
    """A membership over one `consume` after another. The server limits what waits: it is the prefetch."""

    bounded = True
    retry_ms = None

    def address(self, number: int) -> Address:
        return "subscription", self.subscription

    def opening(self, address: Address) -> Command:
        asked = {"subscription": self.subscription, "prefetch": self.asked.prefetch}
        return Command.of("consume", asked)

    def ending(self, address: Address) -> Command:
        return Command.of("unconsume", {"subscription": self.subscription})

    def replied(self, content: Any, date: str | None, now: float) -> None:
        self._began(date, now)

    def push(self, content: Mapping[str, Any]) -> None:
        for kind in ("delivery", "gap", "goodbye"):
            if kind in content and self._goodbye is None:
                self._accept(kind, content[kind])

    def leave(self, reason: str) -> None:
        self._goodbye = reason


def push_reader(
    channels: tuple[str, ...],
    on_gap: OnGap,
    ephemeral: bool,
    presence: bool,
    markers: bool,
    config: Config,
    effects: Sources,
    give_up_after: float | None = None,
    **options: Any,
) -> PushReader:
    """A reader for the arguments of `subscribe`. Raises `ValueError` if they do not fit."""
    if options.pop("heartbeat", None) is not None:
        raise ValueError(
            "WebSocket has no heartbeat of a subscription, because the server's pings are for all of a"
            " connection: use subscribe of the client"
        )
    return PushReader(
        Interest(
            channels,
            markers=markers,
            **known("subscribe", ConnectedSubscribeOptions, options, *_OWN),
        ),
        on_gap=on_gap,
        ephemeral=ephemeral,
        presence=presence,
        give_up_after=give_up_after,
        renews_token=config.renews_token,
        chance=effects.chance,
    )
