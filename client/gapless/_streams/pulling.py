"""Consuming with `ack="auto"` as a state machine: one pull after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypedDict

from gapless._call import Call, Request
from gapless._calls.delivery import PulledDelivery, pull
from gapless._config import Config
from gapless._effects import Sources
from gapless._errors import ProtocolError
from gapless._forks import Forkable
from gapless._lost import Gap
from gapless._retry import Break, Ended, Reply
from gapless._streams.reconnect import FLOOR_SECONDS, Reconnects
from gapless._streams.stream import Streamed, expect_type, log

WAIT_SECONDS = 5.0
"""How long one pull waits for a message."""
MAX_PREFETCH = 1000


class AutoConsumeOptions(TypedDict, total=False):
    """Options of `consume` with `ack="auto"`. Numbers in parentheses are defaults.

    `prefetch` (1, up to 1000): messages that one request takes. They are settled then, so those that were not
    handed out when the stream is closed are lost. `on_gap`, `give_up_after`: as in `ConsumeOptions`.
    """

    prefetch: int
    on_gap: Callable[[Gap], object] | None
    give_up_after: float | None


class Pulling(Forkable, Streamed[PulledDelivery]):
    """Deliveries that the service settled when it handed them out.

    Each connection is one pull, made when somebody wants a delivery and none is left of the last answer. So
    nothing is settled ahead of a slow receiver, and there is nothing to extend or to release. A whole answer
    is handed out whatever becomes of its connection; one that was broken off is lost. A forked child has
    nothing of its parent's answers.
    """

    cursor = None
    started = True

    def __init__(
        self,
        subscription: str,
        config: Config,
        effects: Sources,
        *,
        prefetch: int = 1,
        on_gap: Callable[[Gap], object] | None = None,
        give_up_after: float | None = None,
    ) -> None:
        if not 1 <= prefetch <= MAX_PREFETCH:
            raise ValueError(f"one request takes 1 to {MAX_PREFETCH} messages")
        self._subscription = subscription
        self._call: Call[list[PulledDelivery]] = pull(subscription, prefetch, WAIT_SECONDS, on_gap, "auto")
        self._reconnects = Reconnects(
            give_up_after=give_up_after, renews_token=config.renews_token, chance=effects.chance
        )
        self._waiting: deque[PulledDelivery] = deque()
        self._headers: Mapping[str, str] = {}
        self._body: bytearray | None = None
        self._brought = False
        super().__init__()

    def request(self) -> Request:
        request = self._call.request
        # The length of an answer then says when it is whole.
        return replace(request, headers={**request.headers, "Accept-Encoding": "identity"})

    def opened(self, head: Reply, now: float) -> None:
        expect_type(head, "application/json")
        self._headers, self._body, self._brought = head.headers, bytearray(), False
        self._reconnects.opened(now)

    def feed(self, chunk: bytes) -> None:
        if self._body is None:
            return
        self._body += chunk
        # Whole answers do not wait for their end: a caller that is cancelled until then would lose them.
        if "content-encoding" not in self._headers and self._headers.get("content-length") == str(
            len(self._body)
        ):
            self._read()

    def take(self) -> PulledDelivery | None:
        return self._waiting.popleft() if self._waiting else None

    def lost(self, cause: Break, now: float) -> float | None:
        if isinstance(cause, Ended):
            self._read()
            # A service that answers at once must not be flooded.
            return 0.0 if self._brought else FLOOR_SECONDS
        self._body = None
        pause = self._reconnects.lost(cause, now, goodbye=None, retry_ms=None)
        what = (self._subscription, pause.reason, pause.seconds)
        log.info("pull of %s failed (%s), repeating it in %.2f s", *what)
        return pause.seconds

    def _read(self) -> None:
        """Takes the answer, once it is whole."""
        body, self._body = self._body, None
        if body is None:
            return
        deliveries = self._call.decode(Reply(200, self._headers, bytes(body)))
        if any(delivery.receipt is not None for delivery in deliveries):
            raise ProtocolError("the service leased what it was asked to settle")
        self._reconnects.progressed()
        self._brought = bool(deliveries)
        self._waiting.extend(deliveries)

    def _after_fork(self) -> None:
        self._waiting.clear()
        self._body = None
