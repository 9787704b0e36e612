"""The subscriptions of one client: opens and ends them by its commands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec
from msgspec import UNSET

from app.faces.live import LiveDependencies
from app.faces.sse.query import chosen_start
from app.faces.websocket import codes
from app.faces.websocket.codes import error_code
from app.faces.websocket.commands import ChannelRequest, SubscribeRequest, check_name
from app.faces.websocket.own_token import OwnToken, expiry
from app.faces.websocket.reader import Client, Reader
from app.faces.websocket.replies import Opening, Replies
from app.http.parameters import MAX_LAST
from app.message.limits import MAX_FILTERS
from app.message.selection import read_selection
from subscriptions.domain.errors import GaplessError, invalid
from subscriptions.domain.presence import ClientInfo
from subscriptions.domain.principal import Principal
from subscriptions.domain.selection import MAX_CHANNELS, Selection
from subscriptions.engine.live.live_subscription import LiveSubscription
from subscriptions.engine.live.starts import After, AfterSeq, Latest, Start

NEEDS_RECOVERY: Final = 2
"""The flag of a subscribe that wants an error where it cannot go on without a gap."""

_encode: Final = msgspec.json.Encoder().encode


class Subscribing:
    """The subscriptions of one client, by the channel, pattern or selection that names them."""

    __slots__ = ("_client", "_info", "_open", "_own", "_parts", "_principal", "_replies", "endings")

    def __init__(
        self,
        client: Client,
        info: ClientInfo,
        replies: Replies,
        principal: Principal,
        parts: LiveDependencies,
    ) -> None:
        self._client = client
        self._info = info
        self._replies = replies
        self._principal = principal
        self._parts = parts
        self._open: dict[str, Reader] = {}
        self._own: dict[str, OwnToken] = {}
        self.endings = 0
        """How often the client has ended a subscription."""

    def __repr__(self) -> str:
        return f"Subscribing({len(self._open)})"

    def identify(self, principal: Principal, info: ClientInfo) -> None:
        """It is another one's from now on, who has subscribed to nothing yet, or has the same grants."""
        self._principal, self._info = principal, info

    def stop(self) -> None:
        """The client is gone."""
        for reader in self._open.values():
            reader.stop()
        self._open.clear()

    def forget(self, channel: str) -> None:
        """The server ended this subscription."""
        self._open.pop(channel, None)
        self._own.pop(channel, None)

    def open_all(
        self, subs: dict[str, SubscribeRequest], answer: Callable[[dict[str, Any]], None]
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """Begin the subscriptions of a connect. What is returned waits until all are open, and calls `answer`
        with what was found. One that is refused is left out. Their events come after the answer."""
        answered = asyncio.Event()
        found: dict[str, dict[str, Any]] = {}
        begun: list[asyncio.Event] = []

        def begin(channel: str, request: SubscribeRequest) -> None:
            known = asyncio.Event()

            async def opened(subscription: LiveSubscription) -> None:
                said = _subscribed(request, subscription)
                if _is_unrecoverable(request, said):
                    raise ConnectionResetError
                found[request.channel] = said
                known.set()
                await answered.wait()

            try:
                check_name(request.channel)  # The key is the name, but no member is unbounded.
                request.channel = channel
                reader = self._follow(request, opened, lambda error: None)
            except GaplessError:
                return
            assert reader.task is not None, "it was begun"
            reader.task.add_done_callback(lambda _: known.set())
            begun.append(known)

        for channel, request in subs.items():
            begin(channel, request)

        async def answer_once_open() -> None:
            for known in begun:
                await known.wait()
            answer(found)
            answered.set()

        return answer_once_open

    def subscribe(self, id_: int, request: SubscribeRequest, own: Principal | None = None) -> None:
        """Begin a subscription; the reply comes once it is open. With a token of its `own` it reads by that
        one's grants and ends with it. Raises `invalid_request`, `forbidden`."""
        if check_name(request.channel) in self._open:
            self._replies.refuse(id_, codes.ALREADY_SUBSCRIBED)
            return
        if len(self._open) >= MAX_CHANNELS:
            self._replies.refuse(id_, codes.LIMIT_EXCEEDED)
            return

        opening = Opening(self._replies, id_, b"subscribe")

        async def opened(subscription: LiveSubscription) -> None:
            found = _subscribed(request, subscription)
            if own is not None:
                found |= expiry(own)
            if _is_unrecoverable(request, found):
                opening.refuse(codes.UNRECOVERABLE_POSITION)
                raise ConnectionResetError
            opening.answer(_encode(found))

        def refused(error: GaplessError) -> None:
            # The engine refuses a cursor that lies in the future. It is no position of this log.
            is_position = request.recover and error.status == 400
            opening.refuse(codes.UNRECOVERABLE_POSITION if is_position else error_code(error))

        reader = self._follow(request, opened, refused, own)
        assert reader.task is not None, "it was begun"
        reader.task.add_done_callback(opening.done)
        if own is not None:
            self._watch(reader, own, request, opening)

    def replace_token(self, id_: int, channel: str, who: Principal) -> None:
        """Another token for the subscription. If it grants something else, the client has to subscribe again.
        Raises `invalid_request`, `forbidden`."""
        own = self._own.get(check_name(channel))
        if own is None:
            self._replies.refuse(id_, codes.NO_OWN_TOKEN)
            return
        is_same = _selection(who, own.request) == own.selection
        self._replies.answer(id_, b"sub_refresh", _encode(expiry(who)))
        if is_same:
            own.live_on(who)
        else:
            self._open.pop(channel).stop()
            self._client.unsubscribed(channel, codes.INSUFFICIENT_STATE)

    def _watch(self, reader: Reader, who: Principal, request: SubscribeRequest, opening: Opening) -> None:
        """End the subscription with its own token."""
        channel = request.channel

        def expired() -> None:
            if self._open.get(channel) is not reader:
                return
            self.forget(channel)
            reader.stop()
            if opening.replied:
                self._client.unsubscribed(channel, codes.SUBSCRIPTION_EXPIRED)
            else:
                opening.refuse(codes.TOKEN_EXPIRED)

        def ended(_: asyncio.Task[None]) -> None:
            own.stop()
            if self._own.get(channel) is own:
                del self._own[channel]

        own = self._own[channel] = OwnToken(who, request, _selection(who, request), expired)
        assert reader.task is not None, "it was begun"
        reader.task.add_done_callback(ended)
        own.live_on(who)

    def unsubscribe(self, id_: int, request: ChannelRequest) -> None:
        """End a subscription, if there is one. Nothing of it comes after the reply."""
        self.endings += 1
        reader = self._open.pop(check_name(request.channel), None)
        self._own.pop(request.channel, None)
        if reader is not None:
            reader.stop()
        self._replies.answer(id_, b"unsubscribe", b"{}")

    def _follow(
        self,
        request: SubscribeRequest,
        opened: Callable[[LiveSubscription], Awaitable[None]],
        refused: Callable[[GaplessError], None],
        own: Principal | None = None,
    ) -> Reader:
        """Begin a subscription. Raises `invalid_request`, `forbidden`."""
        channel = request.channel
        selection = _selection(own or self._principal, request)
        by_id = request.selection is not None or selection.single is None
        reader = Reader(channel, by_id, self._client, opened)
        start = _start(request, by_id)

        def ended(_: asyncio.Task[None]) -> None:
            if self._open.get(channel) is reader:
                del self._open[channel]

        self._open[channel] = reader
        reader.task = asyncio.create_task(
            reader.follow(self._parts, selection, start, self._info, refused, join_leave=request.join_leave)
        )
        reader.task.add_done_callback(ended)
        return reader


def _selection(principal: Principal, request: SubscribeRequest) -> Selection:
    """Raises `invalid_request`."""
    if request.tf is not UNSET:
        raise invalid("tf", "is not available: messages have no tags; a selection has other filters")
    asked, channel = request.selection, check_name(request.channel)
    if asked is None:
        return read_selection(principal, [channel], [], [], markers=request.markers)
    if not channel:
        raise invalid("channel", "is the name of the selection, and must not be empty")
    if not 0 < len(asked.channel) <= MAX_CHANNELS:
        raise invalid("selection.channel", f"names 1 to {MAX_CHANNELS} channels")
    for field, texts in (("type", asked.type), ("key", asked.key)):
        if len(texts) > MAX_FILTERS:
            raise invalid(f"selection.{field}", f"has more than {MAX_FILTERS} entries")
    return read_selection(
        principal, asked.channel, asked.type, asked.key, asked.changes, markers=request.markers
    )


def _start(request: SubscribeRequest, by_id: bool) -> Start:
    """Raises `invalid_request`."""
    start: Start = Latest()
    asked = request.selection
    if asked is not None:
        if asked.last is not UNSET and not 1 <= asked.last <= MAX_LAST:
            raise invalid("selection.last", f"must be from 1 to {MAX_LAST}")
        options = {"last": asked.last, "since": asked.since, "from": asked.start}
        start = chosen_start(options, "selection.")
    if not request.recover:
        return start
    return After(request.offset) if by_id else AfterSeq(request.offset, request.epoch)


def _is_unrecoverable(request: SubscribeRequest, found: dict[str, Any]) -> bool:
    """Whether the client wants an error, since messages after its position are gone."""
    return bool(request.flag & NEEDS_RECOVERY and request.recover and not found["recovered"])


def _subscribed(request: SubscribeRequest, subscription: LiveSubscription) -> dict[str, Any]:
    """The answer to a subscribe."""
    opened = subscription.opened
    assert opened is not None, "every start of a session has one"
    found: dict[str, Any] = {"recoverable": True, "positioned": True}
    # The head of one channel is a seq, also for a selection, whose offsets are ids.
    by_id = request.selection is not None and not request.recover
    found |= {"epoch": str(opened.epoch), "offset": subscription.cursor if by_id else opened.seq}
    if request.recover:
        found |= {"was_recovering": True, "recovered": opened.holds}
    return found
