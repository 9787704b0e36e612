"""Ends the leases of pulls with the credential that pulled."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from subscriptions.domain.delivery import Receipt, by_subscription
from subscriptions.domain.principal import Lifetime

MOST: Final = 100_000
"""Leases of pulls that a process remembers."""
AT_ONCE: Final = 1000
"""Leases that end in one transaction."""


class _Pulled(NamedTuple):
    lifetime: Lifetime
    receipts: Sequence[Receipt]
    until_us: int


class Leases:
    """What was pulled on which credential. When one ends, `end` ends its leases, of one subscription at a
    time.

    Only the newest `MOST` leases are remembered, settled ones among them. Older ones, and those of a process
    that is gone, end at their deadlines: who has no credential any more cannot extend them.
    """

    def __init__(self, end: Callable[[list[Receipt]], None], now_us: Callable[[], int]) -> None:
        self._end = end
        self._now_us = now_us
        self._pulled: deque[_Pulled] = deque()
        self._leases = 0
        self._pulls: Counter[Lifetime] = Counter()
        self._watched: dict[Lifetime, Callable[[], None]] = {}

    def __repr__(self) -> str:
        return f"Leases({self._leases} of {len(self._watched)} credentials)"

    def hold(self, lifetime: Lifetime, receipts: Sequence[Receipt], until_us: int) -> None:
        """Remember these leases, which end at `until_us` at the latest (microseconds since the Unix epoch).
        If the credential has ended, they end now."""
        if not receipts:
            return
        self._pulled.append(_Pulled(lifetime, receipts, until_us))
        self._leases += len(receipts)
        self._pulls[lifetime] += 1
        now_us = self._now_us()
        while self._pulled and (self._leases > MOST or self._pulled[0].until_us <= now_us):
            self._remove(self._pulled.popleft())
        if lifetime.over:
            self._end_all(lifetime)
        elif lifetime not in self._watched and self._pulls[lifetime]:
            self._watched[lifetime] = lifetime.watch(lambda: self._end_all(lifetime))

    def forget(self) -> None:
        """Forget all: the numbers of subscriptions mean something else now."""
        while self._pulled:
            self._remove(self._pulled.popleft())

    def _remove(self, pulled: _Pulled) -> None:
        self._leases -= len(pulled.receipts)
        self._pulls[pulled.lifetime] -= 1
        if not self._pulls[pulled.lifetime]:
            del self._pulls[pulled.lifetime]
            if stop_watching := self._watched.pop(pulled.lifetime, None):
                stop_watching()

    def _end_all(self, lifetime: Lifetime) -> None:
        mine = [pulled for pulled in self._pulled if pulled.lifetime is lifetime]
        self._pulled = deque(pulled for pulled in self._pulled if pulled.lifetime is not lifetime)
        for pulled in mine:
            self._remove(pulled)
        for part in by_subscription([receipt for pulled in mine for receipt in pulled.receipts]):
            for at in range(0, len(part), AT_ONCE):
                self._end(part[at : at + AT_ONCE])
