"""Failed and missing credentials are limited by the address that sends them.

A good credential is never limited: many clients may have one address, behind a proxy or a router, and one of
them must not lock the others out. So the limit only turns the answer 401 into 429.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from prometheus_client import Counter
from starlette.types import Scope

from app.http.bearer import EXPIRED
from subscriptions.domain.errors import Code, GaplessError

BURST: Final = 500
"""So many refusals an address may get at once, and so many a second after that."""
RATE: Final = 20.0
MOST: Final = 10_000
"""Addresses that a process remembers. Beyond that it forgets the one that was refused longest ago."""
IPV6_PREFIX: Final = 64
"""What one client of the network usually has."""
UNAUTHENTICATED: Final = Counter(
    "gapless_credentials_refused_total", "Requests without a good credential, by outcome.", ["outcome"]
)

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


class Refusals:
    """Counts refusals by address. `proxies`: whose X-Forwarded-For is believed."""

    def __init__(self, proxies: Sequence[Network] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self._proxies = proxies
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """The refusals left to an address, at a time of the clock."""

    def __repr__(self) -> str:
        return f"Refusals({len(self._left)} addresses)"

    def address_of(self, scope: Scope) -> str:
        """The address of the client; of IPv6, the network. Empty: a socket in the file system has none."""
        client: str = (scope.get("client") or ("", None))[0]
        if self._proxies and self._is_proxy(client):
            sent = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
            # Each proxy adds whom it heard from, at the end. What is before a client, that client wrote.
            for text in reversed(",".join(sent).split(",")):
                if not _is_address(text.strip()):
                    break
                client = text.strip()
                if not self._is_proxy(client):
                    break
        try:
            address = ipaddress.ip_address(client)
        except ValueError:
            return client
        if isinstance(address, ipaddress.IPv4Address):
            return client
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), IPV6_PREFIX), strict=False))

    def judge(self, address: str, error: GaplessError) -> GaplessError:
        """The error for a client whose credential was refused; another error stays as it is. So does that of
        a token that was good: its holder has to learn that it needs another one."""
        if error.code is not Code.UNAUTHENTICATED or error.detail == EXPIRED:
            return error
        limited = bool(address) and not self._take(address)
        UNAUTHENTICATED.labels("limited" if limited else "refused").inc()
        if not limited:
            return error
        detail = "too many requests of this address had no good credential"
        return GaplessError(Code.RATE_LIMITED, detail, retry_after=1)

    def _take(self, address: str) -> bool:
        """Take one of an address; whether one was left."""
        now = self._clock()
        left, then = self._left.pop(address, (float(BURST), now))
        left = min(BURST, left + (now - then) * RATE)
        self._left[address] = (left - 1 if left >= 1 else left), now
        if len(self._left) > MOST:
            self._left.popitem(last=False)
        return left >= 1

    def _is_proxy(self, address: str) -> bool:
        return _is_address(address) and any(ipaddress.ip_address(address) in each for each in self._proxies)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
