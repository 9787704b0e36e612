"""What the engine needs from outside, as protocols: the database, the hint bus, time.

Adapters (`db`, `cache`) implement them; `tests/contract` runs one suite over every implementation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from subscriptions.domain.errors import GaplessError
from subscriptions.domain.model import Append, Appended, Channel, Message, Retention
from subscriptions.domain.selection import Selection
from subscriptions.domain.watermark import Tick


@dataclass(frozen=True, slots=True)
class Head:
    """Where a channel stands. A channel that does not exist is all zeros."""

    channel_id: int
    last_id: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class Trim:
    """Retention removed everything of this channel up to and with `trimmed_id`."""

    channel: str
    channel_id: int
    first_seq: int
    trimmed_id: int


@dataclass(frozen=True, slots=True)
class Page:
    """Everything a selection holds above `after` up to and with `complete_to`, in id order.

    `complete_seq` is the seq that goes with `complete_to` when the selection is one channel, and `channel_id`
    says which channel of that name it was (0: there is none now). `trims` names the channels of which
    retention removed something above `after`.
    """

    after: int
    complete_to: int
    complete_seq: int
    messages: tuple[Message, ...]
    trims: tuple[Trim, ...] = ()
    channel_id: int = 0


@dataclass(frozen=True, slots=True)
class Span:
    """All messages of all channels, as (namespace, message), up to `complete_to`. `trimmed`: retention
    removed something above where the span began, so that it may lack messages."""

    messages: tuple[tuple[str, Message], ...]
    complete_to: int
    trimmed: bool


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """One page of a channel's history: `after` < id < `before`, not older than `since`."""

    namespace: str
    channel: str
    after: int | None
    before: int | None
    since: datetime | None
    types: tuple[str, ...]
    keys: tuple[str, ...]
    limit: int
    ascending: bool = True


class AppendPort(Protocol):
    """One connection that appends."""

    async def append(self, batch: Sequence[Append]) -> list[Appended | GaplessError]:
        """Commit a batch in one transaction; one answer a request, in order.

        Raises GaplessError `unavailable` when the outcome of the whole batch is an error.
        """
        ...


class ReadPort(Protocol):
    """The log as readers need it. Every method raises GaplessError `unavailable` when it cannot be asked."""

    async def tick(self) -> Tick: ...

    async def heads(self, channels: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Head]:
        """Heads of (namespace, name) pairs; those that do not exist are left out."""
        ...

    async def page(self, selection: Selection, after: int, upto: int | None, limit: int) -> Page:
        """What a selection holds in (after, upto], at most `limit` messages of it."""
        ...

    async def span(self, after: int, upto: int, limit: int) -> Span:
        """What the whole log holds in (after, upto], about `limit` messages of it."""
        ...

    async def last(self, selection: Selection, count: int, upto: int) -> dict[int, int]:
        """Channel id → id after which its newest `count` messages up to `upto` begin."""
        ...

    async def page_from(
        self, selection: Selection, starts: dict[int, int], after: int, upto: int, limit: int
    ) -> Page:
        """As `page`, each channel from its own start; channels without one are left out. `trims` names those
        of which retention removed something above both."""
        ...

    async def since(self, selection: Selection, time: datetime) -> int | None:
        """The id after which every message not older than `time` comes; None when there is none."""
        ...

    async def seq_at(self, channel_id: int, message_id: int) -> int:
        """The seq of a channel's newest message at or below this id, removed ones included."""
        ...


class HistoryPort(Protocol):
    """History and channels, for request and answer faces."""

    async def history(self, query: HistoryQuery) -> tuple[list[Message], bool]:
        """A page and whether more follows. Raises `channel_not_found`, or `cursor_expired` when what was
        asked for begins in what retention removed."""
        ...

    def export(self, query: HistoryQuery) -> AsyncIterator[list[Message]]:
        """The same without a limit, batch by batch, in constant memory."""
        ...

    async def message(self, namespace: str, channel: str, message_id: int) -> Message:
        """Raises `channel_not_found` or `message_not_found`."""
        ...

    async def channel(self, namespace: str, name: str) -> Channel:
        """Raises `channel_not_found`."""
        ...

    async def channels(
        self, namespace: str, pattern_regex: str | None, after: str, limit: int
    ) -> list[Channel]:
        """Channels by name after `after`."""
        ...

    async def put_channel(
        self, namespace: str, name: str, retention: Retention, message_ttl: float | None
    ) -> tuple[Channel, bool]:
        """Settings become exactly these; whether the channel was made by this call."""
        ...

    async def patch_channel(self, namespace: str, name: str, settings: dict[str, float | None]) -> Channel:
        """Only the settings named (`max_age`, `max_messages`, `message_ttl`) change."""
        ...

    async def delete_channel(self, namespace: str, name: str) -> None:
        """Raises `channel_not_found`."""
        ...


class MaintenancePort(Protocol):
    """Retention and housekeeping; each call does a bounded piece and says how much it did."""

    async def roll_segment(self, max_age_s: float) -> bool: ...

    async def trim_channels(self, limit: int) -> int: ...

    async def drop_segment(self, settled: int) -> int | None: ...

    async def purge_rows(self, limit: int) -> int: ...

    async def purge_idempotency(self, limit: int) -> int: ...


class HintBus(Protocol):
    """Carries hints between processes. May lose, double and reorder; never blocks a publisher."""

    def send(self, payload: bytes) -> None:
        """Queue for sending; the oldest is dropped when the queue is full."""
        ...


class Clock(Protocol):
    """Monotonic time in seconds."""

    def __call__(self) -> float: ...
