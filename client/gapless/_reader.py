"""A live subscription as a state machine: what to hand out, where to resume, and how long to wait first."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from gapless._call import Request
from gapless._config import Config
from gapless._effects import Effects
from gapless._errors import CredentialExpired, GaplessError, HistoryLost, ProtocolError, Unreachable
from gapless._interest import Interest
from gapless._models import Ephemeral, Gap, Message, ephemeral_from, gap_from, message_from
from gapless._retry import Break, Ended, Reply, backoff, error_from
from gapless._sse import ServerEvent, SSEParser
from gapless._stream import Stream, expect_type, log, parse_json

OnGap = Literal["raise", "yield"] | Callable[[Gap], object]
"""What to do where history was lost: raise `HistoryLost`, yield the `Gap`, or call this and go on."""

Item = Message | Gap | Ephemeral

RETRY_SECONDS = 1.0
"""The first backoff when the server named none."""
FLOOR_SECONDS = 0.1
"""A server that asks for no pause at all gets this one, so that a failing one is not hammered."""
CAP_SECONDS = 30.0
STEADY_SECONDS = 5.0
"""A connection that held this long, or brought a message, is no failure when it ends."""
MAX_GAPS_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class _Ready:
    cursor: int


class Reader(Stream[Item]):
    """Hands out each message once, in id order, over as many connections as it takes.

    `renews_token` says that the next request may carry a fresh credential, so that an expired one only costs
    a reconnect. At most one network read's worth of items is held.
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
        self.cursor = interest.after
        self._interest = interest
        self._on_gap = on_gap
        self._ephemeral = ephemeral
        self._give_up_after = give_up_after
        self._renews_token = renews_token
        self._chance = chance
        self._parser = SSEParser()
        self._waiting: deque[Item | _Ready] = deque()
        self._gaps: OrderedDict[str, int] = OrderedDict()
        self._goodbye: str | None = None
        self._opened_ever = False
        self._opened_at: float | None = None
        self._progressed = False
        self._failures = 0
        self._down_since: float | None = None

    @property
    def started(self) -> bool:
        return self._opened_ever and (self.cursor is not None or bool(self._waiting))

    @property
    def leaving(self) -> bool:
        return self._goodbye is not None

    def request(self) -> Request:
        return self._interest.request(self.cursor)

    def opened(self, head: Reply, now: float) -> None:
        expect_type(head, "text/event-stream")
        # A half-received event of the connection before must not be joined with this one's first bytes.
        self._parser = SSEParser()
        self._opened_ever = True
        self._opened_at = now

    def feed(self, chunk: bytes) -> None:
        for event in self._parser.feed(chunk):
            if self._goodbye is None:
                self._accept(event)

    def _accept(self, event: ServerEvent) -> None:
        match event.type:
            case "message":
                self._waiting.append(message_from(parse_json(event.data)))
            case "ready":
                self._accept_ready(_member(event, "cursor", int))
            case "gap":
                self._waiting.append(gap_from(parse_json(event.data)))
            case "ephemeral" if self._ephemeral:
                self._waiting.append(ephemeral_from(parse_json(event.data)))
            case "goodbye":
                self._goodbye = _member(event, "reason", str)
            case _:
                pass  # Presence and the events of later versions are for others.

    def _accept_ready(self, cursor: int) -> None:
        # Behind messages not yet handed out it has to wait its turn, else the cursor would run ahead of them.
        if self._waiting:
            self._waiting.append(_Ready(cursor))
        else:
            self._advance(cursor)

    def take(self) -> Item | None:
        while self._waiting:
            item = self._waiting.popleft()
            match item:
                case Message():
                    if self.cursor is None or item.id > self.cursor:
                        self._progressed = True
                        self.cursor = item.id
                        return item
                case Gap():
                    if self._is_news(item) and self._settle(item):
                        return item
                case Ephemeral():
                    return item
                case _Ready():
                    self._advance(item.cursor)
        return None

    def _advance(self, cursor: int) -> None:
        self.cursor = cursor if self.cursor is None else max(self.cursor, cursor)

    def _is_news(self, gap: Gap) -> bool:
        """Whether the gap is not the one told already before a reconnect."""
        if self._gaps.get(gap.channel, -1) >= gap.first_seq:
            return False
        self._gaps[gap.channel] = gap.first_seq
        self._gaps.move_to_end(gap.channel)
        if len(self._gaps) > MAX_GAPS_REMEMBERED:
            self._gaps.popitem(last=False)
        return True

    def _settle(self, gap: Gap) -> bool:
        """Does what the caller wants done at a gap; True when it is to be yielded."""
        if callable(self._on_gap):
            self._on_gap(gap)
            return False
        if self._on_gap == "yield":
            return True
        raise HistoryLost(
            f"retention removed {gap.missed} messages of {gap.channel} before seq {gap.first_seq}", gap=gap
        )

    def lost(self, cause: Break, now: float) -> float | None:
        goodbye, self._goodbye = self._goodbye, None
        if goodbye == "credential_expired" and not self._renews_token:
            raise CredentialExpired("the credential expired", code="credential_expired", status=401)
        error = None if isinstance(cause, Ended) else error_from(cause)
        if error is not None and not error.retryable:
            raise error
        self._judge_connection(now)
        at_once = goodbye is not None and self._failures == 0
        delay = 0.0 if at_once else self._delay_seconds(error)
        self._failures += 1
        self._give_up_at_last(error, now)
        reason = goodbye or (error.detail if error else "the server ended the stream")
        log.info("subscription lost (%s), resuming from %s in %.2f s", reason, self.cursor, delay)
        return delay

    def _judge_connection(self, now: float) -> None:
        """Whether the connection that just ended was worth something, so that failures count from anew."""
        steady = self._opened_at is not None and now - self._opened_at >= STEADY_SECONDS
        if steady or self._progressed:
            self._failures = 0
            self._down_since = None
        self._opened_at = None
        self._progressed = False

    def _delay_seconds(self, error: GaplessError | None) -> float:
        asked_ms = self._parser.retry_ms
        base = RETRY_SECONDS if asked_ms is None else max(asked_ms / 1000, FLOOR_SECONDS)
        retry_after = error.retry_after if error else None
        return backoff(self._failures + 1, base, CAP_SECONDS, self._chance()) + (retry_after or 0.0)

    def _give_up_at_last(self, error: GaplessError | None, now: float) -> None:
        if self._down_since is None:
            self._down_since = now
        if self._give_up_after is not None and now - self._down_since > self._give_up_after:
            raise error or Unreachable(
                "the server keeps ending the stream", code="unreachable", retryable=True
            )


def reader(
    channels: tuple[str, ...],
    on_gap: OnGap,
    ephemeral: bool,
    config: Config,
    effects: Effects,
    give_up_after: float | None = None,
    **options: Any,
) -> Reader:
    """A reader for what a caller asked of `subscribe`. Raises `ValueError` when that is no interest."""
    return Reader(
        Interest(channels, **options),
        on_gap=on_gap,
        ephemeral=ephemeral,
        give_up_after=give_up_after,
        renews_token=config.renews_token,
        chance=effects.chance,
    )


def _member(event: ServerEvent, name: str, kind: type[Any]) -> Any:
    data = parse_json(event.data)
    value = data.get(name) if isinstance(data, dict) else None
    if not isinstance(value, kind):
        raise ProtocolError(f"not a {event.type} event: {event.data!r:.200}")
    return value
