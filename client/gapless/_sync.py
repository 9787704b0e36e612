"""The blocking face: carries out calls and streams, decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload

import httpx

from gapless import _publish, _read
from gapless._call import Call, Request, Slice, attempts_for
from gapless._config import Config, Token
from gapless._effects import SyncEffects
from gapless._history import HistoryStream
from gapless._interest import SubscribeOptions
from gapless._models import Channel, Ephemeral, Gap, Message, NewMessage, Page, Payload, Published, Retention
from gapless._publish import BatchOptions, MessageOptions, PublishOptions
from gapless._read import UNSET, HistoryOptions, HistoryQuery, Unset
from gapless._reader import OnGap, reader
from gapless._retry import Outcome, Reply, RetryPolicy
from gapless._sync_stream import SyncStream
from gapless._transport import LIMITS, build, no_reply, reply_of

T = TypeVar("T")


class Client:
    """A blocking client; threads may share it. Calls raise `GaplessError` and try again as `retry` says.

    `base_url` and `token` default to `GAPLESS_URL` (else http://127.0.0.1:8080) and `GAPLESS_TOKEN`; `token`
    may be a function, asked before every request. `timeout` bounds each wait of one attempt, in seconds. An
    `http_client` of the caller's brings its own proxies, certificates and limits, and stays the caller's to
    close.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        token: Token | None = None,
        timeout: float = 10.0,
        retry: RetryPolicy | None = None,
        http_client: httpx.Client | None = None,
        effects: SyncEffects | None = None,
    ) -> None:
        self._config = Config.resolve(base_url, token, timeout, retry)
        self._owns_http = http_client is None
        self._http = http_client or httpx.Client(limits=LIMITS)
        self._effects = effects or SyncEffects()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._config.base_url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections, which ends open subscriptions; those of the caller's `http_client` stay."""
        if self._owns_http:
            self._http.close()

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
    def publish(
        self, channel: str, data: Payload, *, ephemeral: bool = False, **options: Any
    ) -> Published | None:
        """Stores one message; once this returns, it is committed, and once only however often it was tried.

        `data` is any JSON value or bytes. Options: `type`, `key`, `headers`, `ttl` (seconds),
        `idempotency_key`, `expected_last_seq` (else `HeadMismatch`). An `ephemeral` message goes to those who
        listen now, is not stored, takes only `type`, `key` and `headers`, and gives None.
        """
        if ephemeral:
            self._call(_publish.publish_ephemeral(channel, data, **options))
            return None
        return self._call(_publish.publish(channel, data, self._effects.new_key, **options))

    def publish_many(
        self, channel: str, messages: Iterable[NewMessage | Payload], **options: Unpack[BatchOptions]
    ) -> list[Published]:
        """Stores up to 1000 messages in one channel, all or none, in this order."""
        return self._call(_publish.publish_many(channel, messages, self._effects.new_key, **options))

    def publish_all(
        self, messages: Iterable[tuple[str, NewMessage | Payload]], *, idempotency_key: str | None = None
    ) -> list[Published]:
        """Stores up to 1000 messages, each in the channel named before it, all or none."""
        key = idempotency_key
        return self._call(_publish.publish_all(messages, self._effects.new_key, idempotency_key=key))

    @overload
    def subscribe(
        self,
        *channels: str,
        on_gap: Literal["yield"],
        ephemeral: Literal[False] = False,
        **options: Unpack[SubscribeOptions],
    ) -> SyncStream[Message | Gap]: ...
    @overload
    def subscribe(
        self,
        *channels: str,
        ephemeral: Literal[True],
        on_gap: OnGap = "raise",
        **options: Unpack[SubscribeOptions],
    ) -> SyncStream[Message | Gap | Ephemeral]: ...
    @overload
    def subscribe(
        self,
        *channels: str,
        on_gap: Literal["raise"] | Callable[[Gap], object] = "raise",
        ephemeral: Literal[False] = False,
        **options: Unpack[SubscribeOptions],
    ) -> SyncStream[Message]: ...
    def subscribe(
        self,
        *channels: str,
        on_gap: OnGap = "raise",
        ephemeral: bool = False,
        **options: Unpack[SubscribeOptions],
    ) -> SyncStream[Any]:
        """Every message of these channels or patterns, in id order, each once, across any loss of connection.

        Starts and filters are those of `SubscribeOptions`. Where retention removed messages unread, `on_gap`
        says whether to raise `HistoryLost`, yield the `Gap`, or which function to call. What the service
        refuses is raised when the stream is first read or entered.
        """
        core = reader(channels, on_gap, ephemeral, self._config, self._effects, **options)
        return SyncStream(core, self._http, self._config, self._effects)

    def history(
        self, channel: str, *, page_size: int = 100, **options: Unpack[HistoryOptions]
    ) -> Iterator[Page]:
        """The pages of a channel's history. Raises `CursorExpired` where retention removed it."""
        return self._slices(_read.history_pages(HistoryQuery(channel, **options), page_size))

    def iter_history(
        self, channel: str, *, limit: int | None = None, **options: Unpack[HistoryOptions]
    ) -> SyncStream[Message]:
        """A channel's history as one stream of messages, in constant memory, resumed after a break."""
        query = HistoryQuery(channel, **options)
        core = HistoryStream(query, limit, self._config.retry, self._effects.chance)
        return SyncStream(core, self._http, self._config, self._effects)

    def get_message(self, channel: str, message_id: int) -> Message:
        """One message. Raises `NotFound`."""
        return self._call(_read.get_message(channel, message_id))

    def channels(self, pattern: str | None = None, *, page_size: int = 100) -> Iterator[Channel]:
        """The channels whose names match the pattern; all of them without one."""
        return self._slices(_read.channels(pattern, page_size))

    def get_channel(self, name: str) -> Channel:
        """A channel's state and settings. Raises `NotFound`."""
        return self._call(_read.get_channel(name))

    def put_channel(
        self, name: str, *, retention: Retention | None = None, message_ttl: float | None = None
    ) -> Channel:
        """Makes a channel, or gives it exactly these settings; `message_ttl` is in seconds."""
        return self._call(_read.put_channel(name, retention, message_ttl))

    def patch_channel(
        self,
        name: str,
        *,
        retention: Retention | Unset | None = UNSET,
        message_ttl: float | Unset | None = UNSET,
    ) -> Channel:
        """Changes the settings given; None takes one away. Raises `NotFound`."""
        return self._call(_read.patch_channel(name, retention, message_ttl))

    def delete_channel(self, name: str) -> None:
        """Removes a channel and all its messages. Raises `NotFound`."""
        self._call(_read.delete_channel(name))

    def _slices(self, call: Call[Slice[T]] | None) -> Iterator[T]:
        while call is not None:
            part = self._call(call)
            yield from part.items
            call = part.following

    def _call(self, call: Call[T]) -> T:
        attempts = attempts_for(call, self._config.retry, self._effects)
        while True:
            verdict = attempts.judge(self._send(call.request), self._effects.clock())
            if isinstance(verdict, Reply):
                return call.decode(verdict)
            self._effects.sleep(verdict, None)

    def _send(self, request: Request) -> Outcome:
        try:
            return reply_of(self._http.send(build(self._http, self._config, request)))
        except httpx.RequestError as error:
            return no_reply(error)
