"""Consuming over WebSocket with `ack="auto"` as a state machine: deliveries that were settled before."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

from gapless._calls.delivery import PulledDelivery, delivery_from
from gapless._calls.gaps import tell
from gapless._config import Config
from gapless._effects import Sources
from gapless._errors import ProtocolError
from gapless._lost import Gap
from gapless._models import gap_from
from gapless._retry import Break
from gapless._streams.commands import Command
from gapless._streams.consuming import MAX_PREFETCH
from gapless._streams.pushes import Address, PushStream
from gapless._streams.reconnect import Reconnects
from gapless._streams.stream import log, member


class ConnectedAutoConsumeOptions(TypedDict, total=False):
    """Options of `consume` over WebSocket with `ack="auto"`. Numbers in parentheses are defaults.

    `prefetch` (10, up to 1000): messages that the service settles at a time. `on_gap`, `give_up_after`: as in
    `ConsumeOptions`.
    """

    prefetch: int
    on_gap: Callable[[Gap], object] | None
    give_up_after: float | None


class PushSettled(PushStream[PulledDelivery]):
    """Deliveries that the service settled when it pushed them: whatever came is handed out, also after its
    connection ended."""

    bounded = False
    settled = True
    cursor = None

    def __init__(
        self,
        subscription: str,
        config: Config,
        effects: Sources,
        *,
        prefetch: int = 10,
        on_gap: Callable[[Gap], object] | None = None,
        give_up_after: float | None = None,
    ) -> None:
        if not 1 <= prefetch <= MAX_PREFETCH:
            raise ValueError(f"the service settles 1 to {MAX_PREFETCH} messages at a time")
        self._subscription = subscription
        self._prefetch = prefetch
        self._on_gap = on_gap
        self._reconnects = Reconnects(
            give_up_after=give_up_after, renews_token=config.renews_token, chance=effects.chance
        )
        self._waiting: deque[PulledDelivery] = deque()
        self._goodbye: str | None = None
        self._opened_ever = False

    @property
    def started(self) -> bool:
        return self._opened_ever

    @property
    def leaving(self) -> bool:
        return self._goodbye is not None

    def address(self, number: int) -> Address:
        return "subscription", self._subscription

    def opening(self, address: Address) -> Command:
        asked = {"subscription": self._subscription, "prefetch": self._prefetch, "ack": "auto"}
        return Command.of("consume", asked)

    def ending(self, address: Address) -> Command:
        return Command.of("unconsume", {"subscription": self._subscription})

    def replied(self, content: Any, date: str | None, now: float) -> None:
        self._opened_ever = True
        self._reconnects.opened(now)

    def push(self, content: Mapping[str, Any]) -> None:
        if (raw := content.get("delivery")) is not None:
            delivery = delivery_from(self._subscription, raw)
            if delivery.receipt is not None:
                raise ProtocolError("the service leased what it was asked to settle")
            self._waiting.append(delivery)
            self._reconnects.progressed()
        elif (gap := content.get("gap")) is not None:
            tell(self._subscription, gap_from(gap), self._on_gap)
        elif (goodbye := content.get("goodbye")) is not None:
            self._goodbye = member("goodbye", goodbye, "reason", str)

    def leave(self, reason: str) -> None:
        self._goodbye = reason

    def take(self) -> PulledDelivery | None:
        return self._waiting.popleft() if self._waiting else None

    def lost(self, cause: Break, now: float) -> float | None:
        goodbye, self._goodbye = self._goodbye, None
        pause = self._reconnects.lost(cause, now, goodbye=goodbye, retry_ms=None)
        what = (self._subscription, pause.reason, pause.seconds)
        log.info("stream of %s lost (%s), reconnecting in %.2f s", *what)
        return pause.seconds
