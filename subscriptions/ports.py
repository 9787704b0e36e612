"""What the engine needs from outside, as protocols: the database, the hint bus, time.

Adapters (`db`, `cache`) implement them; `tests/contract` runs one suite over every implementation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from subscriptions.domain.delivery import (
    Change,
    Claimed,
    DeadLetter,
    DeadLetterFilter,
    Definition,
    Definitions,
    Hand,
    Length,
    Looked,
    Loss,
    Moment,
    Nack,
    Policy,
    Receipt,
    Scheduled,
    Settings,
    Settled,
    State,
    Stats,
    Subscription,
    Tags,
    Touched,
)
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.model import Append, Appended, Channel, Message, NewMessage, Retention
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
class Lost:
    """Ids from `first_id` to `last_id`, in which there may have been messages of a past that the log does not
    hold any more."""

    first_id: int
    last_id: int


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
    """The log as readers need it. Every method raises GaplessError `unavailable` when it cannot be asked, and
    when what it read is of another history than the last tick."""

    async def tick(self) -> Tick:
        """One reading of where the log stands. Puts up a fence first where the log's history has changed."""
        ...

    async def disown(self, epoch: str, known: int) -> None:
        """Put up a fence if `epoch` is in force: more of it was seen than the database holds, by somebody who
        knew of `known` fences."""
        ...

    async def lost(self, selection: Selection, cursor: int) -> Lost | None:
        """What a reader at `cursor` may have seen of a past that the log does not hold; None: nothing."""
        ...

    async def heads(self, channels: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Head]:
        """Heads of (namespace, name) pairs; those that do not exist are left out."""
        ...

    async def heads_above(self, selection: Selection, after: int) -> dict[str, int]:
        """Channel → its newest id, of those that a selection holds and whose newest id lies above `after`."""
        ...

    async def page(
        self, selection: Selection, after: int, upto: int | None, limit: int, max_bytes: int = ...
    ) -> Page:
        """What a selection holds in (after, upto], at most `limit` messages of it; it ends with the message
        that reaches `max_bytes` of payload."""
        ...

    async def span(self, after: int, upto: int, limit: int) -> Span:
        """What the whole log holds in (after, upto], about `limit` messages of it."""
        ...

    async def last(self, selection: Selection, count: int, upto: int) -> dict[int, int]:
        """Channel id → the id right before its newest `count` messages up to `upto`."""
        ...

    async def page_from(
        self,
        selection: Selection,
        starts: dict[int, int],
        after: int,
        upto: int,
        limit: int,
        max_bytes: int = ...,
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


class SubscriptionPort(Protocol):
    """Durable subscriptions as definitions. Every method raises GaplessError: `unavailable`, and
    `subscription_not_found` where it speaks of one that is not there."""

    async def put(
        self, namespace: str, definition: Definition, *, if_match: Tags | None = None, if_absent: bool = False
    ) -> tuple[Subscription, bool]:
        """Make it, or find the same definition there; whether it was made. Raises `conflict` when another
        definition has the name. With `if_match` that is replaced where it has one of these tags; else raises
        `precondition_failed`, here and below. So it does with `if_absent` where something is there."""
        ...

    async def get(self, namespace: str, name: str, *, stats: bool) -> Subscription: ...

    async def page(
        self, namespace: str, pattern_regex: str | None, after: str, limit: int
    ) -> list[Subscription]:
        """By name after `after`, without stats."""
        ...

    async def patch(
        self,
        namespace: str,
        name: str,
        channels: tuple[str, ...] | None,
        settings: Settings,
        *,
        if_match: Tags | None = None,
    ) -> Subscription:
        """Only the settings named change; one that is None is cleared."""
        ...

    async def bind(
        self,
        namespace: str,
        name: str,
        channels: tuple[str, ...],
        bound: bool,
        *,
        if_match: Tags | None = None,
    ) -> Subscription:
        """Add these channels or patterns to those it reads, or take them away. What is so already changes
        nothing. Raises `invalid_request` where none or too many would be left."""
        ...

    async def delete(
        self,
        namespace: str,
        name: str,
        *,
        if_match: Tags | None = None,
        if_empty: bool = False,
        if_unused: bool = False,
    ) -> None:
        """Raises `conflict` with `if_empty` where it holds messages that are not settled, and with
        `if_unused` where it has members."""
        ...

    async def purge(self, namespace: str, name: str, settled: int | None) -> int:
        """Remove what is ready, delayed or waiting, up to what is `settled`; how many. Several decisions:
        what is done when one fails stays done, and a seek that comes between ends it."""
        ...

    async def length(self, namespace: str, name: str) -> Length:
        """How many messages it holds, at a bounded cost."""
        ...

    async def seek(self, namespace: str, name: str, to: str) -> Subscription:
        """`to` as `Definition.start`. Everything leased, delayed or waiting is forgotten."""
        ...

    async def try_seek(self, namespace: str, name: str, to: str) -> tuple[Subscription, Stats | None]:
        """What a seek would lead to, changing nothing: the subscription with the stats it would have, and
        those it has (None: it has no progress)."""
        ...

    async def pause(self, namespace: str, name: str, paused: bool) -> Subscription: ...

    async def pause_pushed(self, namespace: str, name: str, url: str) -> bool:
        """Pause it if it is pushed to `url` at this very moment; whether it is."""
        ...


class DeliveryPort(Protocol):
    """Claims and settlements: each a single decision of the database. Raise GaplessError `unavailable`."""

    async def claim(
        self, subscription_id: int, settled: int, limit: int, holder: int = 0, hands: Sequence[Hand] = ()
    ) -> Claimed:
        """Lease up to `limit` messages, the first for the first of `hands`, but that what is in doubt goes
        only where few are held; without `hands` all are for one pull. `settled`: nothing can appear at or
        below this id any more. `holder`: the process with which these leases end."""
        ...

    async def ack(self, receipts: Sequence[Receipt]) -> list[Settled]:
        """One answer a receipt, in order; committed when it returns."""
        ...

    async def nack(
        self, receipts: Sequence[Receipt], nack: Nack
    ) -> tuple[list[Settled], tuple[Touched, ...]]: ...

    async def extend(self, receipts: Sequence[Receipt], ack_wait_s: float | None) -> list[Settled]: ...

    async def release(self, receipts: Sequence[Receipt], *, delivered: bool) -> tuple[Touched, ...]:
        """End leases, all that one member held: due again at once. What was never `delivered` does not count
        as an attempt."""
        ...

    async def told(self, subscription_id: int, losses: Sequence[Loss]) -> None:
        """A stream was told of these."""
        ...

    async def live(self, receipts: Sequence[Receipt]) -> list[bool]:
        """Which of these leases still hold."""
        ...

    async def look(self, namespace: str, name: str, state: State | None, after: int, limit: int) -> Looked:
        """What is not settled, of one state or of any, with ids above `after`, at most `limit`; nothing is
        leased. A page may be short, or empty, and more follow. Raises `subscription_not_found`."""
        ...


class TransactionPort(Protocol):
    """Publishing and settling together."""

    async def transact(
        self, append: Append | None, receipts: Sequence[Receipt], places: Sequence[str]
    ) -> Appended:
        """All of it or nothing. `places` names each receipt for the caller. Raises `transaction_conflict`
        when a receipt holds no lease, and what `AppendPort.append` answers for one request."""
        ...


class ReapPort(Protocol):
    """What time alone decides: leases that ended, messages that expired, backlogs that grew too long."""

    async def due(self, namespaces: Collection[str]) -> list[int]:
        """Ids of their subscriptions that may have something to decide."""
        ...

    async def reap(self, subscription_id: int, settled: int, limit: int) -> tuple[int, tuple[Touched, ...]]:
        """How many messages were decided, at most about `limit`. Passes over a subscription that somebody
        else decides about at the moment."""
        ...


class DeparturePort(Protocol):
    """Processes that are gone, and the leases of their streams. Raise GaplessError `unavailable`."""

    async def departed(self, namespaces: Collection[str]) -> list[tuple[int, int]]:
        """(process, subscription) where a process that is gone still holds leases."""
        ...

    async def release_departed(
        self, holder: int, subscription_id: int, limit: int
    ) -> tuple[int, tuple[Touched, ...]]:
        """End about `limit` of them, of each stream all at once; how many."""
        ...


class AttendancePort(Protocol):
    """Which processes have members of a subscription. Raise GaplessError `unavailable`."""

    async def attend(self, subscription_id: int, holder: int) -> bool:
        """This process has; whether the subscription is there."""
        ...

    async def leave(self, subscription_id: int, holder: int) -> None:
        """It has none any more."""
        ...


class DeadLetterPort(Protocol):
    """The list of dead letters. Raise `unavailable`, `dead_letter_not_found`."""

    async def page(self, which: DeadLetterFilter, after: int, limit: int) -> list[DeadLetter]:
        """By id after `after`."""
        ...

    async def get(self, namespace: str, dead_letter_id: int) -> DeadLetter: ...

    async def delete(self, namespace: str, dead_letter_id: int) -> None: ...

    async def replay(self, namespace: str, dead_letter_id: int) -> tuple[str, int]:
        """Give the message back; the subscription's name and the message's id. Raises
        `subscription_not_found` when that subscription is no more."""
        ...

    async def replay_all(
        self, which: DeadLetterFilter, most: int | None = None, rate: float | None = None
    ) -> tuple[int, int]:
        """How many were replayed, `most` at most, and how many passed over on the way: held by others, or of
        no subscription any more. With a `rate` each is due 1/rate seconds after the one before."""
        ...

    async def replayable(self, which: DeadLetterFilter, most: int | None = None) -> tuple[int, int]:
        """What `replay_all` would answer, changing nothing."""
        ...

    async def purge(self, which: DeadLetterFilter) -> int: ...


class PolicyPort(Protocol):
    """Policies and whole definitions. Raise `unavailable`, `not_found`."""

    async def put(
        self, namespace: str, policy: Policy, *, if_match: Tags | None = None, if_absent: bool = False
    ) -> tuple[bool, str]:
        """Make or replace it; whether it was made, and its tag. In force for every decision after this
        returns. Raises `precondition_failed` where it has none of the tags, or, `if_absent`, is there."""
        ...

    async def get(self, namespace: str, name: str) -> Policy: ...

    async def all(self, namespace: str) -> list[Policy]: ...

    async def delete(self, namespace: str, name: str, *, if_match: Tags | None = None) -> None: ...

    async def definitions(self, namespace: str) -> Definitions:
        """Everything, from one snapshot."""
        ...

    async def apply(
        self, namespace: str, wanted: Definitions, *, dry_run: bool, if_match: Tags | None = None
    ) -> tuple[list[Change], int]:
        """Add and change until all that is wanted is there: what changed, and how many were as asked. All
        of it or nothing; a dry run only tells."""
        ...


class SchedulePort(Protocol):
    """Messages to be published later. Raise `unavailable`, `message_not_found`."""

    async def schedule(
        self,
        namespace: str,
        messages: Sequence[NewMessage],
        moments: Sequence[Moment],
        idempotency_key: str | None,
        fingerprint: bytes,
    ) -> tuple[list[Scheduled], bool]:
        """Store messages for one channel, all or none, each with its moment; and whether an earlier request
        with this key stored them. Raises `idempotency_mismatch`."""
        ...

    async def get(self, namespace: str, scheduled_id: int) -> Scheduled: ...

    async def page(self, namespace: str, channel: str | None, after: int, limit: int) -> list[Scheduled]: ...

    async def cancel(self, namespace: str, scheduled_id: int) -> None: ...

    async def promote(self, namespace: str, scheduled_id: int) -> tuple[Appended, tuple[Touched, ...]]:
        """Publish it now."""
        ...

    async def publish_due(self, namespaces: Collection[str], limit: int) -> tuple[int, tuple[Touched, ...]]:
        """Publish what is due in these, at most `limit`, in the order of `deliver_at`."""
        ...


class HintBus(Protocol):
    """Carries hints between processes. May lose, double and reorder; never blocks a publisher."""

    def send(self, payload: bytes) -> None:
        """Queue for sending; the oldest is dropped when the queue is full."""
        ...


class Clock(Protocol):
    """Monotonic time in seconds."""

    def __call__(self) -> float: ...
