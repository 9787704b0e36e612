"""Ports for reading the log: where it stands, and what is in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from subscriptions.domain.delivery import Tags
from subscriptions.domain.model import Channel, Message, Original, Retention
from subscriptions.domain.selection import Changes, Selection
from subscriptions.domain.watermark import Fence, Tick


@dataclass(frozen=True, slots=True)
class Head:
    """Where a channel stands. A channel that does not exist has zeros everywhere but in `unborn_at`.

    `unborn_at` is what a reader keeps that begins before the first message: the last id that was taken when a
    channel was last deleted in the namespace. What is deleted later has a larger one.
    """

    channel_id: int
    last_id: int
    last_seq: int
    unborn_at: int = 0


@dataclass(frozen=True, slots=True)
class Trim:
    """Retention removed all messages of this channel up to and including `trimmed_id`."""

    channel: str
    channel_id: int
    first_seq: int
    trimmed_id: int


@dataclass(frozen=True, slots=True)
class Place:
    """A position of a channel, found by its seq: `id` is that of the newest message at or below the seq. If
    retention removed that message, `id` is `trimmed_id`. A channel that does not exist has `channel_id` 0.

    `unborn_at` is that of `Head`. `deletion_id`: the last id that was taken when the channel of this name
    before this one was deleted (0: none was), or a larger one if the log remembers no more.
    """

    channel_id: int
    last_id: int
    last_seq: int
    first_seq: int
    trimmed_id: int
    unborn_at: int
    deletion_id: int
    id: int

    @property
    def head(self) -> Head:
        """Where the channel stands."""
        return Head(self.channel_id, self.last_id, self.last_seq, self.unborn_at)


NO_PLACE: Final = Place(0, 0, 0, 1, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Lost:
    """Ids from `first_id` to `last_id`. Messages of another history may have had them, and the log does not
    hold those messages. The reader goes on after `stands`, which lies below its cursor if this history does
    not know the cursor's."""

    first_id: int
    last_id: int
    stands: int


@dataclass(frozen=True, slots=True)
class Page:
    """All messages that a selection holds above `after`, up to and including `complete_to`, in id order.

    `complete_seq` is the seq at `complete_to` when the selection is one channel, and `channel_id` says which
    channel of that name it was (0: there is none now). `trims` names the channels from which retention
    removed messages above `after`.
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
    removed messages above the start of the span, so messages may be missing."""

    messages: tuple[tuple[str, Message], ...]
    complete_to: int
    trimmed: bool


class ReadPort(Protocol):
    """The log as readers need it. Every method raises GaplessError `unavailable` when the database cannot be
    asked, and when what it read lies behind another fence than that of the history that is followed."""

    async def tick(self) -> Tick:
        """Read where the log stands. If the log's history has changed, this puts up a fence first."""
        ...

    def follow(self, tick: Tick) -> None:
        """From here on, what is read must lie behind the fence of this tick, the last one."""
        ...

    def doubt(self, fence: Fence) -> None:
        """A message was committed behind this fence: the next tick fails once if it does not know of it."""
        ...

    async def disown(self, epoch: str, known: int) -> None:
        """Put up a fence if `epoch` is in force. The caller has seen more of this history than the database
        holds; `known` is the number of the newest fence that both know of."""
        ...

    async def lost(self, selection: Selection, cursor: int) -> Lost | None:
        """The ids that a reader at `cursor` may have seen and that the log does not hold, or None. `cursor`
        may lie ahead of the log."""
        ...

    async def heads(self, channels: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Head]:
        """Heads of (namespace, name) pairs, also of channels that do not exist; those of namespaces that do
        not exist are left out."""
        ...

    async def heads_above(self, selection: Selection, after: int) -> dict[str, int]:
        """Channel → its newest id, for the channels of a selection whose newest id is above `after`."""
        ...

    async def page(
        self, selection: Selection, after: int, upto: int | None, limit: int, max_bytes: int = ...
    ) -> Page:
        """The messages of a selection in (after, upto], at most `limit`. The page ends with the message that
        reaches `max_bytes` of payload."""
        ...

    async def span(self, after: int, upto: int, limit: int) -> Span:
        """The messages of the whole log in (after, upto], about `limit` of them."""
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
        """As `page`, with a start of its own for each channel; channels without a start are left out. `trims`
        names the channels from which retention removed messages above both their start and `after`."""
        ...

    async def since(self, selection: Selection, time: datetime) -> int | None:
        """An id: all messages that are not older than `time` come after it. None when there are none."""
        ...

    async def seq_at(self, channel_id: int, message_id: int) -> int:
        """The seq of a channel's newest message at or below this id; removed messages count too."""
        ...

    async def place_at(self, namespace: str, channel: str, seq: int) -> Place:
        """Where a seq of this channel lies."""
        ...


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
    changes: Changes = "all"


class HistoryPage(NamedTuple):
    """A page, whether more follows, and the newest id of the channel at that moment."""

    messages: list[Message]
    has_more: bool
    head: int


class HistoryPort(Protocol):
    """History, for faces that answer requests."""

    async def history(self, query: HistoryQuery) -> HistoryPage:
        """A page. Raises `channel_not_found`, or `cursor_expired` when the page
        asked for begins among messages that retention removed."""
        ...

    def export(self, query: HistoryQuery) -> AsyncIterator[list[Message]]:
        """All messages that the query asks for, batch by batch, in constant memory."""
        ...

    async def message(self, namespace: str, channel: str, message_id: int) -> Message:
        """One message. Raises `channel_not_found` or `message_not_found`."""
        ...


class LatestPage(NamedTuple):
    """A page of originals, whether more follows, and the newest id of the channel at that moment."""

    originals: list[Original]
    has_more: bool
    head: int


class ViewPort(Protocol):
    """Channels as they are after all changes. Methods raise `channel_not_found`."""

    async def latest(self, query: HistoryQuery, changed_after: int | None = None) -> LatestPage:
        """A page of originals: all, or those that a message after `changed_after` changed, oldest first.
        Raises `cursor_expired` as history does."""
        ...

    def export(self, query: HistoryQuery, changed_after: int | None = None) -> AsyncIterator[list[Original]]:
        """All originals that the query asks for, batch by batch, in constant memory."""
        ...

    async def original(self, namespace: str, channel: str, message_id: int) -> Original:
        """One original. Raises `message_not_found`."""
        ...

    async def changes(
        self, namespace: str, channel: str, message_id: int, actions: Sequence[str], after: int, limit: int
    ) -> tuple[list[Message], bool]:
        """The messages after `after` that do this to one, in order, and whether more follow."""
        ...


class ChannelPort(Protocol):
    """Channels with their settings."""

    async def get(self, namespace: str, name: str) -> Channel:
        """The channel with its settings. Raises `channel_not_found`."""
        ...

    async def page(self, namespace: str, pattern_regex: str | None, after: str, limit: int) -> list[Channel]:
        """Channels with names after `after`, in order of names."""
        ...

    async def put(
        self,
        namespace: str,
        name: str,
        retention: Retention,
        message_ttl: float | None,
        *,
        if_match: Tags | None = None,
        if_absent: bool = False,
    ) -> tuple[Channel, bool]:
        """Set the channel's settings to exactly these; also returns whether this call created the channel.
        Raises `precondition_failed`: with `if_match` if no channel with one of these tags exists, with
        `if_absent` if the channel exists."""
        ...

    async def patch(
        self, namespace: str, name: str, settings: dict[str, float | None], *, if_match: Tags | None = None
    ) -> Channel:
        """Change only the settings named (`max_age`, `max_messages`, `message_ttl`). Raises
        `channel_not_found`, and with `if_match` `precondition_failed`; so does `delete`."""
        ...

    async def delete(self, namespace: str, name: str, *, if_match: Tags | None = None) -> None: ...


class ReadWatermark(Protocol):
    """Asks now where the log stands: the settled id, and the last id taken."""

    async def __call__(self) -> tuple[int, int]: ...
