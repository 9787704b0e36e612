# Written by client/unasync.py from _async/client.py: change that file, and run the script.
"""The blocking face. It carries out calls and streams, and decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Literal, Unpack, overload

from gapless._calls import history as _history
from gapless._calls import publish as _publish
from gapless._calls import scheduled as _scheduled
from gapless._calls import tickets as _tickets
from gapless._calls.history import HistoryOptions, HistoryQuery, View
from gapless._calls.markers import Marker
from gapless._calls.publish import BatchOptions, MessageOptions, PublishOptions
from gapless._calls.scheduled import Scheduled, ScheduleOptions, Time
from gapless._calls.tickets import Ticket
from gapless._lost import Gap
from gapless._models import Ephemeral, Message, NewMessage, Page, Payload, Published
from gapless._options import known
from gapless._streams.history import HistoryStream
from gapless._streams.interest import SubscribeOptions
from gapless._streams.reader import reader
from gapless._streams.reading import OnGap
from gapless._sync.conversation import Conversation
from gapless._sync.nouns import Nouns
from gapless._sync.queue import Queue
from gapless._sync.stream import Stream


class Client(Queue, Nouns):
    """A blocking client; threads may share it. Calls raise `GaplessError` and are retried as `retry` says.

    `base_url` and `token` default to `GAPLESS_URL` (else http://127.0.0.1:8080) and `GAPLESS_TOKEN`, or the
    file `GAPLESS_TOKEN_FILE`. `token` may be a function; it is called before every request, as the file is
    read. So streams go on with the next token when one ends. `timeout` limits each wait of one attempt, in
    seconds. With an `http_client`, its own proxies, certificates and limits apply, and the caller closes it.
    A forked child has its own connections; an `http_client` that the parent used is refused.
    """

    @overload
    def publish(
        self,
        channel: str,
        data: Payload,
        *,
        ephemeral: Literal[False] = False,
        **options: Unpack[PublishOptions],
    ) -> Published: ...
    @overload
    def publish(
        self, channel: str, data: Payload, *, ephemeral: Literal[True], **options: Unpack[MessageOptions]
    ) -> None: ...
    @overload
    def publish(
        self, channel: str, data: Payload, *, delay: float, **options: Unpack[ScheduleOptions]
    ) -> Scheduled: ...
    @overload
    def publish(
        self, channel: str, data: Payload, *, deliver_at: datetime | str, **options: Unpack[ScheduleOptions]
    ) -> Scheduled: ...
    def publish(
        self,
        channel: str,
        data: Payload,
        *,
        ephemeral: bool = False,
        delay: float | None = None,
        deliver_at: datetime | str | None = None,
        **options: Any,
    ) -> Published | Scheduled | None:
        """Stores one message. When this returns, the message is committed, once only, also after retries.

        `data` is any JSON value or bytes. Options: `type`, `key`, `headers`, `ttl` (seconds), `sender` (in
        whose name a moderator sends), `idempotency_key`, `expected_last_seq` (raises `HeadMismatch` if it
        differs), `target` and `action` (`update`, `delete`, `reply`, or `annotate` with `annotation` and
        `mode`: an earlier message of the channel, and what this one does to it), `expected_version` (of the
        target; raises `VersionMismatch` if it differs). An `ephemeral` message goes to the readers that
        listen now and is not stored; it takes only `type`, `key`, `headers` and `sender`, and the call
        returns None. With a `delay` in seconds, or a `deliver_at`, it returns `Scheduled`, even if that time
        is past.
        """
        times = {"delay": delay, "deliver_at": deliver_at}
        given = {name: time for name, time in times.items() if time is not None}
        form = MessageOptions if ephemeral else ScheduleOptions if given else PublishOptions
        known("publish", form, options, "ephemeral", *times)
        options |= given
        if ephemeral:
            self._call(_publish.publish_ephemeral(channel, data, **options))
            return None
        if given:
            return self._call(_scheduled.schedule(channel, data, self._effects.new_key, **options))
        return self._call(_publish.publish(channel, data, self._effects.new_key, **options))

    def publish_many(
        self, channel: str, messages: Iterable[NewMessage | Payload], **options: Unpack[BatchOptions]
    ) -> list[Published]:
        """Stores up to 1000 messages in one channel in this order: all of them or none."""
        return self._call(_publish.publish_many(channel, messages, self._effects.new_key, **options))

    def publish_all(
        self, messages: Iterable[tuple[str, NewMessage | Payload]], *, idempotency_key: str | None = None
    ) -> list[Published]:
        """Stores up to 1000 pairs of a channel and a message: all of them or none."""
        key = idempotency_key
        return self._call(_publish.publish_all(messages, self._effects.new_key, idempotency_key=key))

    def schedule_many(
        self,
        channel: str,
        messages: Iterable[tuple[Time, NewMessage | Payload]],
        *,
        idempotency_key: str | None = None,
    ) -> list[Scheduled]:
        """Schedules up to 1000 pairs of a time and a message: all of them or none.

        A time is a number of seconds from now, an aware datetime, or RFC 3339 text.
        """
        key = idempotency_key
        new_key = self._effects.new_key
        return self._call(_scheduled.schedule_many(channel, messages, new_key, idempotency_key=key))

    @overload
    def subscribe(
        self,
        *channels: str,
        on_gap: Literal["yield"],
        ephemeral: Literal[False] = False,
        markers: Literal[False] = False,
        **options: Unpack[SubscribeOptions],
    ) -> Stream[Message | Gap]: ...
    @overload
    def subscribe(
        self,
        *channels: str,
        ephemeral: Literal[True],
        on_gap: OnGap = "raise",
        markers: Literal[False] = False,
        **options: Unpack[SubscribeOptions],
    ) -> Stream[Message | Gap | Ephemeral]: ...
    @overload
    def subscribe(
        self,
        *channels: str,
        on_gap: Literal["raise"] | Callable[[Gap], object] = "raise",
        ephemeral: Literal[False] = False,
        markers: Literal[False] = False,
        **options: Unpack[SubscribeOptions],
    ) -> Stream[Message]: ...
    @overload
    def subscribe(
        self,
        *channels: str,
        markers: Literal[True],
        on_gap: OnGap = "raise",
        ephemeral: bool = False,
        **options: Unpack[SubscribeOptions],
    ) -> Stream[Message | Gap | Ephemeral | Marker]: ...
    def subscribe(
        self,
        *channels: str,
        on_gap: OnGap = "raise",
        ephemeral: bool = False,
        markers: bool = False,
        **options: Unpack[SubscribeOptions],
    ) -> Stream[Any]:
        """Reads every message of these channels or patterns once, in id order, even if connections are lost.

        `SubscribeOptions` lists the options, such as `start`. If retention removed messages before they were
        read, `on_gap` decides: raise `HistoryLost`, yield the `Gap`, or call this function. If the service
        refuses the request, the error is raised when the stream is first read or entered.

        With `markers` the stream also has a `Marker` for each that moves. They come at most once: ask
        `markers.of` after the stream is entered, and again after a break.
        """
        core = reader(channels, on_gap, ephemeral, markers, self._config, self._effects, **options)
        return Stream(core, self._pool, self._config, self._effects)

    def history(
        self, channel: str, *, page_size: int = 100, **options: Unpack[HistoryOptions]
    ) -> Iterator[Page]:
        """The pages of a channel's history. Raises `CursorExpired` if retention removed what it asks for."""
        query = HistoryQuery.of(channel, **known("history", HistoryOptions, options, "page_size"))
        return self._slices(_history.history_pages(query, page_size))

    def iter_history(
        self, channel: str, *, limit: int | None = None, **options: Unpack[HistoryOptions]
    ) -> Stream[Message]:
        """A channel's history as one stream of messages, in constant memory, resumed after a break."""
        query = HistoryQuery.of(channel, **known("iter_history", HistoryOptions, options, "limit"))
        core = HistoryStream(query, limit, self._config, self._effects.chance)
        return Stream(core, self._pool, self._config, self._effects)

    def ticket(self, *, channels: Sequence[str] | None = None, subscription: str | None = None) -> Ticket:
        """A ticket with which a browser opens one stream within 30 s, as `?ticket=`.

        It is for these channels (names and patterns), or for this subscription; without either for all that
        the credential may read. Raises `Forbidden` for what the credential does not grant.
        """
        return self._call(_tickets.create(channels, subscription))

    def get_message(self, channel: str, message_id: int, *, view: View = "log") -> Message:
        """One message; with the view `latest` an `Original`, as it is after all changes. Or `NotFound`."""
        return self._call(_history.get_message(channel, message_id, view))

    def versions(self, channel: str, message_id: int) -> Iterator[Message]:
        """An original as it was sent, its updates and its deletion, as they came. Raises `NotFound`."""
        return self._slices(_history.changes_of(channel, message_id, "versions"))

    def replies(self, channel: str, message_id: int) -> Iterator[Message]:
        """The replies to an original, as they came. Raises `NotFound`."""
        return self._slices(_history.changes_of(channel, message_id, "replies"))

    def conversation(self, channel: str, *, newest: int | None = None) -> Conversation:
        """A channel as it is after all changes, kept up to date: `messages`, and an iteration over changes.

        `newest`: begin with so many of its newest messages (up to 1000) in place of all. It holds them in
        memory.
        """
        return Conversation(self, channel, newest)
