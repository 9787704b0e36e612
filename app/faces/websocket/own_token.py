"""The token of one subscription: the subscription ends with it, unless the client sends the next one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from app.faces.websocket.commands import SubscribeRequest
from subscriptions.domain.principal import Principal
from subscriptions.domain.selection import Selection


class OwnToken:
    """Watches the token under which a subscription was opened, and `end`s the subscription with it."""

    __slots__ = ("_end", "_unwatch", "request", "selection", "who")

    def __init__(
        self, who: Principal, request: SubscribeRequest, selection: Selection, end: Callable[[], None]
    ) -> None:
        self.who = who
        self.request = request
        self.selection = selection
        self._end = end
        self._unwatch: Callable[[], None] = lambda: None

    def __repr__(self) -> str:
        return f"OwnToken({self.request.channel}, {self.who.lifetime!r})"

    def live_on(self, who: Principal) -> None:
        """From now on it ends with this token. If that has ended, it ends at once."""
        self._unwatch()
        self.who = who
        self._unwatch = who.lifetime.watch(self._end)

    def stop(self) -> None:
        """The subscription is over."""
        self._unwatch()


def expiry(who: Principal) -> dict[str, Any]:
    """When a client has to renew its token: `ttl`, in whole seconds. That is a second before the token ends,
    so that the next one comes in time. Empty if it does not end."""
    if who.expires_at_us is None:
        return {}
    left_s = (who.expires_at_us - time.time_ns() // 1000) // 1_000_000
    return {"expires": True, "ttl": max(1, left_s - 1)}
