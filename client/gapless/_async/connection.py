"""A connection over WebSocket on asyncio: publishes and streams share it, and reopen it after a break."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from ssl import SSLContext
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, Unpack, overload
from weakref import WeakSet

from gapless._async.consumer import AsyncConsumer
from gapless._async.link import AsyncLink, Inlet, open_link
from gapless._async.member import AsyncMember
from gapless._async.stream import AsyncStream, _AsyncIteration
from gapless._call import Call, attempts_for, json_body
from gapless._calls.delivery import Ack, PulledDelivery
from gapless._calls.markers import Marker
from gapless._calls.presence import Presence, PresenceEvent, presence_from
from gapless._calls.publish import ConnectedPublishOptions, MessageOptions, command_members
from gapless._config import Config
from gapless._effects import AsyncEffects
from gapless._errors import GaplessError, apart
from gapless._forks import OneProcess
from gapless._lost import Gap
from gapless._models import Ephemeral, Message, Payload, Published, published_from
from gapless._options import known
from gapless._retry import Attempts, Break, Ended, NoReply, Reply, RetryPolicy
from gapless._streams.commands import Answer, Command, End, Goodbye
from gapless._streams.consuming import Consumption
from gapless._streams.pushes import (
    ConnectedConsumeOptions,
    ConnectedSubscribeOptions,
    PushMembership,
    PushStream,
    push_reader,
)
from gapless._streams.reading import OnGap
from gapless._streams.settled import ConnectedAutoConsumeOptions, PushSettled

T = TypeVar("T")
R = TypeVar("R")

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 5.0
"""Limits of the pause after an attempt to connect that failed, for all that share the connection. Each stream
and each publish has its own backoff on top."""
MISSING = "connect needs the package websockets: pip install gapless[websocket]"


CLOSED = NoReply("the connection was closed by its client", sent=False, passing=False)


class AsyncConnection(OneProcess):
    """One WebSocket to the service, shared by any number of publishes and up to 128 streams.

    It opens when it is entered or first used, and again after a break: streams go on behind the last message
    they handed out. `async with` opens it; a refusal is raised there. At the end, publishes under way get
    their replies first, for as long as the client's timeout, and the streams end. Tasks may share it.
    """

    def __init__(
        self,
        config: Config,
        effects: AsyncEffects,
        *,
        on_close: Callable[[AsyncConnection], object],
        max_in_flight: int,
        lateness: float,
        ssl: SSLContext | None,
        proxy: str | Literal[True] | None,
    ) -> None:
        try:
            import websockets  # noqa: F401
        except ImportError as error:
            raise ImportError(MISSING) from error
        if max_in_flight < 1 or not lateness > 0:
            raise ValueError("the publishes in flight and the lateness must be positive")
        self.config = config
        self.effects = effects
        self._on_close = on_close
        self._lateness = lateness
        self._ssl = ssl
        self._proxy: str | Literal[True] | None = proxy
        self._slots = asyncio.Semaphore(max_in_flight)
        self._in_flight = 0
        self._numbers = itertools.count(1)
        self._link: AsyncLink | None = None
        self._dialing: asyncio.Task[AsyncLink | Break] | None = None
        self._not_before = effects.clock()
        self._failures = 0
        self._closing = asyncio.Event()
        self._streams: WeakSet[AsyncPushStream[Any]] = WeakSet()
        super().__init__()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open" if self._is_open else "not connected"
        return f"<{type(self).__name__} {self.config.base_url} {state}, {self._in_flight} in flight>"

    @property
    def closed(self) -> bool:
        """Whether it was closed by its user."""
        return self._closing.is_set()

    @property
    def _is_open(self) -> bool:
        return self._link is not None and self._link.end is None

    async def __aenter__(self) -> Self:
        try:
            await self._linked()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes it, and ends its streams. Closing twice is harmless."""
        if self._foreign:
            return
        self._closing.set()
        self._on_close(self)
        if self._dialing is not None:
            self._dialing.cancel()
            await asyncio.gather(self._dialing, return_exceptions=True)
        for stream in list(self._streams):
            await stream.aclose()
        if self._link is not None:
            await self._link.aclose()

    @overload
    async def publish(
        self,
        channel: str,
        data: Payload,
        *,
        ephemeral: Literal[False] = False,
        **options: Unpack[ConnectedPublishOptions],
    ) -> Published: ...
    @overload
    async def publish(
        self, channel: str, data: Payload, *, ephemeral: Literal[True], **options: Unpack[MessageOptions]
    ) -> None: ...
    async def publish(
        self, channel: str, data: Payload, *, ephemeral: bool = False, **options: Any
    ) -> Published | None:
        """Stores one message. When this returns, the message is committed.

        Many may be in flight: messages are stored in the order of the calls, except those that are repeated.
        Options: `type`, `key`, `headers`, `ttl` (seconds), `sender`. WebSocket has no idempotency keys: if
        the connection is lost before the reply, or no reply comes in time, it may or may not be stored.
        Then this raises `Unreachable` (`ServerError` if the service failed) and does not repeat it. What was
        certainly not stored (the service had too many requests, the connection could not be opened or was
        lost before the message was sent, or the message was not sent in time) is repeated as `retry` says,
        and may be stored after messages of later calls. Wait for a message that has to come before another.
        A call that is cancelled before its message is sent does not send it. `AsyncClient.publish` is for a
        message that must neither be lost nor doubled.
        """
        self._use()
        if self.closed:
            raise RuntimeError("this connection is closed")
        known("publish", MessageOptions if ephemeral else ConnectedPublishOptions, options, "ephemeral")
        command = Command.of("publish", command_members(channel, data, ephemeral=ephemeral, **options))
        async with self._slots:
            self._in_flight += 1
            try:
                answer = await self._carry_out(command)
            finally:
                self._in_flight -= 1
        return None if ephemeral else published_from(answer.content, replayed=False)

    @overload
    def subscribe(
        self,
        *channels: str,
        on_gap: Literal["yield"],
        ephemeral: Literal[False] = False,
        presence: Literal[False] = False,
        markers: Literal[False] = False,
        **options: Unpack[ConnectedSubscribeOptions],
    ) -> AsyncStream[Message | Gap]: ...
    @overload
    def subscribe(
        self,
        *channels: str,
        ephemeral: Literal[True],
        on_gap: OnGap = "raise",
        presence: Literal[False] = False,
        markers: Literal[False] = False,
        **options: Unpack[ConnectedSubscribeOptions],
    ) -> AsyncStream[Message | Gap | Ephemeral]: ...
    @overload
    def subscribe(
        self,
        *channels: str,
        on_gap: Literal["raise"] | Callable[[Gap], object] = "raise",
        ephemeral: Literal[False] = False,
        presence: Literal[False] = False,
        markers: Literal[False] = False,
        **options: Unpack[ConnectedSubscribeOptions],
    ) -> AsyncStream[Message]: ...
    @overload
    def subscribe(
        self,
        *channels: str,
        presence: Literal[True],
        on_gap: OnGap = "raise",
        ephemeral: bool = False,
        markers: Literal[False] = False,
        **options: Unpack[ConnectedSubscribeOptions],
    ) -> AsyncStream[Message | Gap | Ephemeral | PresenceEvent]: ...
    @overload
    def subscribe(
        self,
        *channels: str,
        markers: Literal[True],
        on_gap: OnGap = "raise",
        ephemeral: bool = False,
        presence: bool = False,
        **options: Unpack[ConnectedSubscribeOptions],
    ) -> AsyncStream[Message | Gap | Ephemeral | PresenceEvent | Marker]: ...
    def subscribe(
        self,
        *channels: str,
        on_gap: OnGap = "raise",
        ephemeral: bool = False,
        presence: bool = False,
        markers: bool = False,
        **options: Unpack[ConnectedSubscribeOptions],
    ) -> AsyncStream[Any]:
        """Like `AsyncClient.subscribe`, over this connection; the cursors of both are the same ids.

        `ConnectedSubscribeOptions` lists the options. If a reader is more than 1 MiB of messages behind, the
        subscription ends without disturbing the others and is opened again where the reader is; ephemeral
        messages in between are not seen. Cancelling a wait for the next item loses nothing.

        With `presence` the stream also has a `Joined` or `Left` for each other client that begins or stops to
        read a channel that is named here, not by a pattern; `PresenceChanged` where they are too many. They
        come at most once: ask `presence` after the stream is entered, and again after a break.
        """
        core = push_reader(
            channels, on_gap, ephemeral, presence, markers, self.config, self.effects, **options
        )
        return AsyncPushStream(core, self)

    async def presence(self, channel: str) -> Presence:
        """The clients that read this channel live and name it, over WebSocket or as a stream of events.

        A connection is one client. Raises `Unavailable` while the service cannot tell.
        """
        self._use()
        if self.closed:
            raise RuntimeError("this connection is closed")
        answer = await self._carry_out(Command.of("presence", {"channel": channel}), repeatable=True)
        return presence_from(answer.content)

    @overload
    def consume(
        self, subscription: str, *, ack: Literal["auto"], **options: Unpack[ConnectedAutoConsumeOptions]
    ) -> AsyncStream[PulledDelivery]: ...
    @overload
    def consume(
        self,
        subscription: str,
        *,
        ack: Literal["manual"] = "manual",
        **options: Unpack[ConnectedConsumeOptions],
    ) -> AsyncConsumer: ...
    def consume(
        self, subscription: str, *, ack: Ack = "manual", **options: Any
    ) -> AsyncConsumer | AsyncStream[PulledDelivery]:
        """Like `AsyncClient.consume`, over this connection, which also carries what settles its deliveries.

        A connection can be one member of each subscription, of 32 in all: a second consumer of the same one
        raises `Conflict`. When the connection is lost, all its leases end.

        With `ack="auto"` the service settles each message when it sends it, ahead of the receiver, as
        `ConnectedAutoConsumeOptions` says. All that came is handed out, also after a break. What was on its
        way at a break is lost, and so is what was not handed out when the stream is closed. If a receiver is
        more than 1 MiB behind, the service is told to stop, loses nothing, and is asked again later.
        """
        if ack == "auto":
            known("consume", ConnectedAutoConsumeOptions, options, "ack")
            return AsyncPushStream(PushSettled(subscription, self.config, self.effects, **options), self)
        if ack != "manual":
            raise ValueError(f'ack is "manual" or "auto", not {ack!r}')
        asked = Consumption(subscription, **known("consume", ConnectedConsumeOptions, options, "ack"))
        pushes = PushMembership(asked, self.config, self.effects)
        member = AsyncMember(pushes, AsyncPushStream(pushes, self), self._call, self.effects)
        return AsyncConsumer(member, asked, self.config.timeout_seconds)

    # What its publishes and streams use.

    async def link(self) -> AsyncLink | Break:
        """The open WebSocket, opened now if need be, or why there is none. Raises errors that end streams."""
        self._use()
        if self.closed:
            return CLOSED
        if self._link is not None and self._link.end is None:
            return self._link
        if self._dialing is None:
            self._dialing = asyncio.get_running_loop().create_task(self._dial())
            self._dialing.add_done_callback(self._dialed)
        try:
            return await asyncio.shield(self._dialing)
        except asyncio.CancelledError:
            if self.closed and not _is_cancelled():
                return CLOSED
            raise
        except GaplessError as error:
            raise apart(error) from error.__cause__

    def adopt(self, stream: AsyncPushStream[Any]) -> None:
        """Notes a stream that has to end with this connection."""
        self._streams.add(stream)

    def next_number(self) -> int:
        """A number that no other subscription of this connection has."""
        return next(self._numbers)

    async def _dial(self) -> AsyncLink | Break:
        """Opens a WebSocket, at the earliest when the pause after the last failure is over."""
        wait_seconds = self._not_before - self.effects.clock()
        if wait_seconds > 0:
            await self.effects.sleep(wait_seconds, self._closing)
        link = await open_link(self.config, self._lateness, self._ssl, self._proxy)
        if isinstance(link, AsyncLink):
            self._failures = 0
            self._link, replaced = link, self._link
            if replaced is not None:
                await replaced.aclose()
        else:
            pause_seconds = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures, 60), LONGEST_PAUSE_SECONDS)
            self._failures += 1
            self._not_before = self.effects.clock() + pause_seconds
        return link

    def _dialed(self, dialing: asyncio.Task[AsyncLink | Break]) -> None:
        self._dialing = None
        if not dialing.cancelled():
            dialing.exception()  # Marks it as seen: those who wait get it, if any is left.

    # Publishing.

    async def _carry_out(self, command: Command, *, repeatable: bool = False) -> Answer:
        attempts: Attempts | None = None
        while True:
            link = await self._linked()
            outcome = await link.ask(command)
            if isinstance(outcome, Answer):
                return outcome
            attempts = attempts or self._attempts(repeatable=repeatable)
            await self._pause(attempts, outcome)

    async def _call(self, call: Call[T], policy: RetryPolicy | None = None) -> T:
        """Settles deliveries: the command has the name and the body of the request."""
        verb = call.request.path.rpartition("/")[2]
        command = Command(verb, call.request.content or b"{}")
        attempts = attempts_for(call, self.config, self.effects, policy)
        while True:
            link = await self.link()
            outcome = await link.ask(command) if isinstance(link, AsyncLink) else link
            if isinstance(outcome, Answer):
                return call.decode(Reply(200, {}, json_body(outcome.content)))
            await self._pause(attempts, outcome)

    async def _linked(self) -> AsyncLink:
        """The open WebSocket, after as many attempts as `retry` allows."""
        attempts: Attempts | None = None
        while not isinstance(link := await self.link(), AsyncLink):
            attempts = attempts or self._attempts(repeatable=True)
            await self._pause(attempts, link)
        return link

    def _attempts(self, *, repeatable: bool) -> Attempts:
        config, effects = self.config, self.effects
        return Attempts(
            config.retry,
            repeatable=repeatable,
            now=effects.clock(),
            chance=effects.chance,
            renews_token=config.renews_token,
        )

    async def _pause(self, attempts: Attempts, outcome: Break) -> None:
        """Waits for the next attempt. Raises the outcome's error if there is none."""
        assert isinstance(outcome, Reply | NoReply), "a connection that is being opened does not end"
        seconds = attempts.judge(outcome, self.effects.clock())
        assert isinstance(seconds, float), "it is no success"
        await self.effects.sleep(seconds, self._closing)


def _is_cancelled() -> bool:
    """Whether this task is to be cancelled, and not only what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class AsyncPushStream(AsyncStream[T]):
    """A stream over a shared connection. Other than one of its own, it survives a wait that is cancelled."""

    def __init__(self, pushes: PushStream[T], connection: AsyncConnection) -> None:
        self._pushes = pushes
        self._connection = connection
        self._link: AsyncLink | None = None
        self._inlet: Inlet | None = None
        self._open = False
        _AsyncIteration.__init__(self, pushes, connection.effects)
        connection.adopt(self)

    @property
    def _over(self) -> bool:
        return self._closing.is_set() or self._connection.closed

    @property
    def _connected(self) -> bool:
        return self._open

    async def _connect(self) -> Break | None:
        link = await self._until_closed(self._connection.link())
        if not isinstance(link, AsyncLink):
            return link
        address = self._pushes.address(self._connection.next_number())
        pushes = self._pushes
        inlet = Inlet(address, pushes.ending(address), bounded=pushes.bounded, settled=pushes.settled)
        self._link, self._inlet = link, inlet
        outcome = await self._until_closed(link.ask(self._pushes.opening(address), inlet))
        if not isinstance(outcome, Answer):
            return self._ended(link.end) if link.end is not None else outcome
        self._pushes.replied(outcome.content, link.date, self._effects.clock())
        self._open = True
        return None

    async def _receive(self) -> Break | None:
        inlet = self._inlet
        assert inlet is not None, "it is connected"
        inlet.news.clear()
        if (push := inlet.take()) is not None:
            self._pushes.push(push)
        elif inlet.end is not None:
            return self._ended(inlet.end)
        elif inlet.overrun:
            self._pushes.leave("the reader fell behind")
        else:
            await inlet.news.wait()
        return None

    def _ended(self, end: End) -> Break:
        match end:
            case NoReply():
                return end
            case Goodbye(reason):
                self._pushes.leave(reason)
                return Ended()
            case GaplessError():
                raise apart(end) from end.__cause__

    def _after_fork(self) -> None:
        _AsyncIteration._after_fork(self)

    async def _drop(self) -> None:
        link, inlet = self._link, self._inlet
        self._link, self._inlet, self._open = None, None, False
        if link is not None and inlet is not None:
            link.leave(inlet)

    async def _interrupted(self) -> None:
        if not self._open:
            await self._drop()

    async def _until_closed(self, work: Coroutine[Any, Any, R]) -> R | Ended:
        """The result of this work, or `Ended` if the stream is closed first."""
        doing, closing = asyncio.create_task(work), asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait((doing, closing), return_when=asyncio.FIRST_COMPLETED)
            return doing.result() if doing.done() else Ended()
        finally:
            for one in (doing, closing):
                one.cancel()
            await asyncio.gather(doing, closing, return_exceptions=True)
