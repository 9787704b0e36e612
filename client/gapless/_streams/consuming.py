"""Consuming a durable subscription as a state machine. It holds deliveries and says when to reconnect."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict

from gapless._call import Call, Request, params_from, path
from gapless._calls.delivery import Settled, delivery_from, extend, release
from gapless._calls.gaps import tell
from gapless._config import Config
from gapless._effects import Sources
from gapless._errors import GaplessError
from gapless._lost import Gap
from gapless._models import gap_from
from gapless._retry import Break, Reply
from gapless._streams.interest import SILENT_HEARTBEATS
from gapless._streams.leases import Lease, Leases
from gapless._streams.reconnect import Reconnects
from gapless._streams.server_clock import ServerClock
from gapless._streams.sse import SSEParser
from gapless._streams.stream import Resumable, Streamed, expect_type, log, member, parse_json

MAX_PREFETCH = 1000
_KINDS = frozenset({"delivery", "gap", "goodbye"})


class ConsumeOptions(TypedDict, total=False):
    """Options of `consume`. Numbers in parentheses are defaults.

    `prefetch` (10, up to 1000): unsettled deliveries at a time, including those that wait in the client.
    `max_hold` (3600): seconds for which one lease is extended in total, waiting and in its block.
    `raise_lost`: raise `LeaseLost` at the end of a block whose lease was lost. `on_gap`: a function that is
    called with each `Gap`. It names messages that retention removed before this subscription had settled
    them, or (`ids`) messages that may have been delivered and are lost since the primary changed. Without
    `on_gap` a gap is logged. `heartbeat` (15): whole seconds, 5 to 60, between the server's signs of life.
    `give_up_after`: seconds of retries without the service before an error is raised; None is for ever.
    """

    prefetch: int
    max_hold: float
    raise_lost: bool
    on_gap: Callable[[Gap], object] | None
    heartbeat: int
    give_up_after: float | None


@dataclass(frozen=True, slots=True)
class Consumption:
    """What a member asks for. Raises `ValueError` for values out of range."""

    subscription: str
    prefetch: int = 10
    max_hold: float = 3600.0
    raise_lost: bool = False
    on_gap: Callable[[Gap], object] | None = None
    heartbeat: float = 15.0
    give_up_after: float | None = None

    def __post_init__(self) -> None:
        if self.prefetch < 1:
            raise ValueError("a member takes at least one delivery at a time")
        if not (self.heartbeat > 0 and self.max_hold > 0):
            raise ValueError("the heartbeat and the hold must be positive")
        self.request()  # A name that no URL can carry is refused here, not when the stream opens.

    def request(self) -> Request:
        """Opens the stream of deliveries."""
        headers = {
            "Accept": "text/event-stream",
            "Cache-Control": "no-store",
            # A compressing proxy would hold events back until its window fills.
            "Accept-Encoding": "identity",
        }
        params = params_from({"prefetch": self.prefetch, "heartbeat": f"{self.heartbeat:g}"})
        where = path("subscriptions", self.subscription, "consume")
        return Request("GET", where, params, headers, silence_seconds=self.heartbeat * SILENT_HEARTBEATS)


def prefetch_for(concurrency: int) -> int:
    """How many deliveries to read ahead: for each handler, one in hand and one waiting.

    Raises `ValueError` when `concurrency` is below 1.
    """
    if concurrency < 1:
        raise ValueError("the concurrency must be at least 1")
    return min(2 * concurrency, MAX_PREFETCH)


class Membership(Resumable[Lease]):
    """The leases of one member over one connection after another.

    When a connection ends, every lease it gave ends. Leases that were not handed out yet are forgotten and
    come again; the others are marked as lost. If the subscription was deleted, it is asked for once more,
    because it may have been created again; the answer to that request ends the stream.

    It is the same for event streams and for WebSocket; what a connection brings goes to `_accept`.
    """

    cursor = None

    def __init__(self, asked: Consumption, config: Config, effects: Sources) -> None:
        self.asked = asked
        self.leases = Leases(ServerClock(effects.wall), asked.max_hold)
        self._clock: Callable[[], float] = effects.clock
        self._reconnects = Reconnects(
            give_up_after=asked.give_up_after, renews_token=config.renews_token, chance=effects.chance
        )
        self._waiting: deque[Lease] = deque()
        self._goodbye: str | None = None
        self._opened_ever = False

    @property
    def subscription(self) -> str:
        """The name of the subscription."""
        return self.asked.subscription

    @property
    def started(self) -> bool:
        return self._opened_ever

    @property
    def leaving(self) -> bool:
        return self._goodbye is not None

    @property
    @abstractmethod
    def retry_ms(self) -> int | None:
        """The pause that the server asked for before the next connection, in milliseconds."""

    def _began(self, date: str | None, now: float) -> None:
        """A connection is open; its answer had this `Date`."""
        self.leases.server_clock.observe(date)
        self._opened_ever = True
        self._reconnects.opened(now)

    def _accept(self, kind: str, content: Any) -> None:
        """Takes an event of this kind. Raises `ProtocolError`."""
        match kind:
            case "delivery":
                delivery = delivery_from(self.subscription, content)
                self._waiting.append(self.leases.begin(delivery, self._clock()))
                self._reconnects.progressed()
            case "gap":
                tell(self.subscription, gap_from(content), self.asked.on_gap)
            case "goodbye":
                self._goodbye = member(kind, content, "reason", str)
            case _:
                pass  # The events of later versions are for others.

    def take(self) -> Lease | None:
        return self._waiting.popleft() if self._waiting else None

    def lost(self, cause: Break, now: float) -> float | None:
        goodbye, self._goodbye = self._goodbye, None
        self._waiting.clear()
        self.leases.lose_all("the stream that gave it ended")
        pause = self._reconnects.lost(cause, now, goodbye=goodbye, retry_ms=self.retry_ms)
        log.info(
            "stream of %s lost (%s), reconnecting in %.2f s",
            self.subscription,
            pause.reason,
            pause.seconds,
        )
        return pause.seconds

    def extension(self, receipts: Sequence[str]) -> Call[list[Settled]]:
        """The call that extends the leases that are due; its answer also tells the service's time."""
        call = extend(self.subscription, receipts)

        def decode(reply: Reply) -> list[Settled]:
            self.leases.server_clock.observe(reply.headers.get("date"))
            return call.decode(reply)

        return replace(call, decode=decode)

    def not_extended(self, receipts: Sequence[str], error: Exception) -> None:
        """That call failed. Leases that may be extended later are due again, the others are lost.

        Another exception, such as one of the token function, must not be raised again here.
        """
        if not isinstance(error, GaplessError):
            log.warning("leases of %s could not be extended", self.subscription, exc_info=error)
        elif not error.retryable:
            self.leases.refused(receipts, str(error))
            return
        self.leases.failed(receipts, self._clock())

    def release(self, leases: Sequence[Lease]) -> Call[list[Settled]]:
        """The call that gives back what was not worked on."""
        return release(self.subscription, [lease.receipt for lease in leases])

    def released(self, leases: Sequence[Lease], results: Sequence[Settled]) -> None:
        """Takes the results of that call."""
        for lease, settled in zip(leases, results, strict=True):
            self.leases.settle(lease, settled)

    def not_released(self, leases: Sequence[Lease], error: Exception) -> None:
        """That call failed: the leases end by themselves, or with the stream."""
        for lease in leases:
            what = (lease.delivery.message.id, self.subscription)
            log.warning("message %d of %s could not be released: %r", *what, error)
            self.leases.settle(lease)


class Consuming(Membership, Streamed[Lease]):
    """A membership over event streams."""

    def __init__(self, asked: Consumption, config: Config, effects: Sources) -> None:
        super().__init__(asked, config, effects)
        self._made_from = asked, config, effects
        self._parser = SSEParser()

    def anew(self) -> Consuming:
        """Another membership with the same options."""
        return Consuming(*self._made_from)

    @property
    def retry_ms(self) -> int | None:
        return self._parser.retry_ms

    def request(self) -> Request:
        return self.asked.request()

    def opened(self, head: Reply, now: float) -> None:
        expect_type(head, "text/event-stream")
        # A half-received event of the connection before must not be joined with this one's first bytes.
        self._parser = SSEParser()
        self._began(head.headers.get("date"), now)

    def feed(self, chunk: bytes) -> None:
        for event in self._parser.feed(chunk):
            if self._goodbye is None and event.type in _KINDS:
                self._accept(event.type, parse_json(event.data))


class Inbox:
    """Leases that wait for a caller to take them. Leases that are lost meanwhile are skipped."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: deque[Lease] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, lease: Lease) -> None:
        """Adds a lease. The service sends at most `size` live ones, and lost ones make room."""
        if len(self._waiting) >= self._size:
            self._waiting = deque(one for one in self._waiting if not one.lost)
        self._waiting.append(lease)

    def drain(self) -> list[Lease]:
        """Removes and returns all live leases. No caller gets them."""
        waiting, self._waiting = self._waiting, deque()
        return [lease for lease in waiting if not lease.lost]

    def take(self) -> Lease | None:
        """Removes and returns the first live lease; None if there is none."""
        while self._waiting:
            lease = self._waiting.popleft()
            if not lease.lost:
                lease.given = True
                return lease
        return None
