"""The asyncio face: carries out calls and streams, decides nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from datetime import datetime
from typing import Any, Literal, Unpack, overload

from gapless import _publish, _read, _scheduled
from gapless._async_manage import AsyncManage
from gapless._async_queue import AsyncQueue
from gapless._async_stream import AsyncStream
from gapless._history import HistoryStream
from gapless._interest import SubscribeOptions
from gapless._models import Channel, Ephemeral, Gap, Message, NewMessage, Page, Payload, Published, Retention
from gapless._publish import BatchOptions, MessageOptions, PublishOptions
from gapless._read import UNSET, HistoryOptions, HistoryQuery, Unset
from gapless._reader import OnGap, reader
from gapless._scheduled import Scheduled, ScheduleOptions


class AsyncClient(AsyncQueue, AsyncManage):
    """A client for asyncio. Calls raise `GaplessError` and try again as `retry` says.

    `base_url` and `token` default to `GAPLESS_URL` (else http://127.0.0.1:8080) and `GAPLESS_TOKEN`; `token`
    may be a function, asked before every request. `timeout` bounds each wait of one attempt, in seconds. An
    `http_client` of the caller's brings its own proxies, certificates and limits, and stays the caller's to
    close.
    """

    @overload
    async def publish(
        self,
        channel: str,
        data: Payload,
        *,
        ephemeral: Literal[False] = False,
        **options: Unpack[PublishOptions],
    ) -> Published: ...
    @overload
    async def publish(
        self, channel: str, data: Payload, *, ephemeral: Literal[True], **options: Unpack[MessageOptions]
    ) -> None: ...
    @overload
    async def publish(
        self, channel: str, data: Payload, *, delay: float, **options: Unpack[ScheduleOptions]
    ) -> Scheduled: ...
    @overload
    async def publish(
        self, channel: str, data: Payload, *, deliver_at: datetime | str, **options: Unpack[ScheduleOptions]
    ) -> Scheduled: ...
    async def publish(
        self,
        channel: str,
        data: Payload,
        *,
        ephemeral: bool = False,
        delay: float | None = None,
        deliver_at: datetime | str | None = None,
        **options: Any,
    ) -> Published | Scheduled | None:
        """Stores one message; once this returns, it is committed, and once only however often it was tried.

        `data` is any JSON value or bytes. Options: `type`, `key`, `headers`, `ttl` (seconds),
        `idempotency_key`, `expected_last_seq` (else `HeadMismatch`). An `ephemeral` message goes to those who
        listen now, is not stored, takes only `type`, `key` and `headers`, and gives None. With a `delay` in
        seconds, or `deliver_at`, it is `Scheduled`, also where that time has come already.
        """
        times = {"delay": delay, "deliver_at": deliver_at}
        options |= {name: time for name, time in times.items() if time is not None}
        if ephemeral:
            await self._call(_publish.publish_ephemeral(channel, data, **options))
            return None
        if options.keys() & times:
            return await self._call(_scheduled.schedule(channel, data, self._effects.new_key, **options))
        return await self._call(_publish.publish(channel, data, self._effects.new_key, **options))

    async def publish_many(
        self, channel: str, messages: Iterable[NewMessage | Payload], **options: Unpack[BatchOptions]
    ) -> list[Published]:
        """Stores up to 1000 messages in one channel, all or none, in this order."""
        return await self._call(_publish.publish_many(channel, messages, self._effects.new_key, **options))

    async def publish_all(
        self, messages: Iterable[tuple[str, NewMessage | Payload]], *, idempotency_key: str | None = None
    ) -> list[Published]:
        """Stores up to 1000 messages, each in the channel named before it, all or none."""
        key = idempotency_key
        return await self._call(_publish.publish_all(messages, self._effects.new_key, idempotency_key=key))

    @overload
    def subscribe(
        self,
        *channels: str,
        on_gap: Literal["yield"],
        ephemeral: Literal[False] = False,
        **options: Unpack[SubscribeOptions],
    ) -> AsyncStream[Message | Gap]: ...
    @overload
    def subscribe(
        self,
        *channels: str,
        ephemeral: Literal[True],
        on_gap: OnGap = "raise",
        **options: Unpack[SubscribeOptions],
    ) -> AsyncStream[Message | Gap | Ephemeral]: ...
    @overload
    def subscribe(
        self,
        *channels: str,
        on_gap: Literal["raise"] | Callable[[Gap], object] = "raise",
        ephemeral: Literal[False] = False,
        **options: Unpack[SubscribeOptions],
    ) -> AsyncStream[Message]: ...
    def subscribe(
        self,
        *channels: str,
        on_gap: OnGap = "raise",
        ephemeral: bool = False,
        **options: Unpack[SubscribeOptions],
    ) -> AsyncStream[Any]:
        """Every message of these channels or patterns, in id order, each once, across any loss of connection.

        Starts and filters are those of `SubscribeOptions`. Where retention removed messages unread, `on_gap`
        says whether to raise `HistoryLost`, yield the `Gap`, or which function to call. What the service
        refuses is raised when the stream is first read or entered.
        """
        core = reader(channels, on_gap, ephemeral, self._config, self._effects, **options)
        return AsyncStream(core, self._http, self._config, self._effects)

    def history(
        self, channel: str, *, page_size: int = 100, **options: Unpack[HistoryOptions]
    ) -> AsyncIterator[Page]:
        """The pages of a channel's history. Raises `CursorExpired` where retention removed it."""
        return self._slices(_read.history_pages(HistoryQuery(channel, **options), page_size))

    def iter_history(
        self, channel: str, *, limit: int | None = None, **options: Unpack[HistoryOptions]
    ) -> AsyncStream[Message]:
        """A channel's history as one stream of messages, in constant memory, resumed after a break."""
        query = HistoryQuery(channel, **options)
        core = HistoryStream(query, limit, self._config.retry, self._effects.chance)
        return AsyncStream(core, self._http, self._config, self._effects)

    async def get_message(self, channel: str, message_id: int) -> Message:
        """One message. Raises `NotFound`."""
        return await self._call(_read.get_message(channel, message_id))

    def channels(self, pattern: str | None = None, *, page_size: int = 100) -> AsyncIterator[Channel]:
        """The channels whose names match the pattern; all of them without one."""
        return self._slices(_read.channels(pattern, page_size))

    async def get_channel(self, name: str) -> Channel:
        """A channel's state and settings. Raises `NotFound`."""
        return await self._call(_read.get_channel(name))

    async def put_channel(
        self, name: str, *, retention: Retention | None = None, message_ttl: float | None = None
    ) -> Channel:
        """Makes a channel, or gives it exactly these settings; `message_ttl` is in seconds."""
        return await self._call(_read.put_channel(name, retention, message_ttl))

    async def patch_channel(
        self,
        name: str,
        *,
        retention: Retention | Unset | None = UNSET,
        message_ttl: float | Unset | None = UNSET,
    ) -> Channel:
        """Changes the settings given; None takes one away. Raises `NotFound`."""
        return await self._call(_read.patch_channel(name, retention, message_ttl))

    async def delete_channel(self, name: str) -> None:
        """Removes a channel and all its messages. Raises `NotFound`."""
        await self._call(_read.delete_channel(name))
