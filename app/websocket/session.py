"""The session of a WebSocket client: takes its commands, in their order, and answers them.

Answers are gathered until the event loop comes round, and written as one message with a line for each.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from msgspec import UNSET

from app import VERSION
from app.telemetry import PUBLISHED
from app.websocket import codes
from app.websocket.codes import Ending, ErrorCode, error_code
from app.websocket.commands import (
    ChannelRequest,
    Command,
    ConnectRequest,
    HistoryRequest,
    Since,
    SubscribeRequest,
    check_name,
    id_of,
    method_of,
    read_command,
    split,
)
from app.websocket.following import Following
from app.websocket.publications import publication, push
from app.websocket_protocol import WebSocketConnection, text_frame
from app.wire import json
from app.wire.checks import check_key, check_type
from app.wire.encode import encode_ephemeral, encode_message, encode_positions
from app.wire.publish import FAILURES, parse_addressed, refuse
from subscriptions.domain.channel_epoch import ChannelEpoch, Standing
from subscriptions.domain.errors import Code, GaplessError, invalid
from subscriptions.domain.model import Append, Appended, Message
from subscriptions.domain.names import check_channel
from subscriptions.domain.pattern import check_budget, check_pattern, is_pattern
from subscriptions.domain.selection import Selection, select
from subscriptions.engine.exchange import Exchange
from subscriptions.engine.hints import EphemeralHint
from subscriptions.engine.live.beginning import standing_of
from subscriptions.engine.live.engine import LiveEngine
from subscriptions.engine.live.live_subscription import LiveSubscription
from subscriptions.engine.live.starts import After, AfterSeq, Latest, Start
from subscriptions.engine.publisher import Publisher
from subscriptions.ports import HistoryPort, HistoryQuery, Place, ReadPort

logger = logging.getLogger("gapless.http")

MAX_CHANNELS: Final = 128
MAX_UNANSWERED: Final = 4096
"""Commands of one connection that wait for their answers; more are refused."""
MAX_STRIKES: Final = 3
MAX_HISTORY: Final = 1000
PING_S: Final = 25.0
PONG_S: Final = 10.0
CONNECT_S: Final = 5.0
NEEDS_RECOVERY: Final = 2
"""The flag of a subscribe that wants an error where it cannot go on without a gap."""

_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Parts:
    """What sessions use of the service."""

    live: LiveEngine
    read: ReadPort
    publisher: Publisher
    exchange: Exchange
    history: HistoryPort
    namespace: str


class Session:
    """One client. It is silent until its `connect`."""

    __slots__ = (
        "_connection",
        "_flushing",
        "_followings",
        "_out",
        "_parts",
        "_reading",
        "_strikes",
        "_tasks",
        "_unanswered",
        "began_at",
        "connected",
        "id",
        "on_dropped",
        "pinged_at",
        "ponged",
    )

    def __init__(
        self, connection: WebSocketConnection, parts: Parts, on_dropped: Callable[[Session], None]
    ) -> None:
        self.id = str(uuid.uuid4())
        self.connected = False
        self.began_at = self.pinged_at = time.monotonic()
        self.ponged = True
        self.on_dropped = on_dropped
        self._connection = connection
        self._parts = parts
        self._followings: dict[str, Following] = {}
        self._tasks: set[asyncio.Task[None]] | None = None
        self._out: list[bytes] = []
        self._flushing = False
        self._strikes = 0
        self._unanswered = 0
        self._reading: asyncio.Lock | None = None

    def __repr__(self) -> str:
        return f"Session({self.id}, {len(self._followings)} subscriptions, {self._unanswered} unanswered)"

    # What its connection tells.

    def received(self, message: bytes) -> None:
        lines = split(message)
        if lines is None:
            self.close(codes.TOO_MANY_COMMANDS)
            return
        for line in lines:
            if self._connection.is_closing:
                return
            try:
                command = read_command(line)
            except FAILURES as error:
                self._refuse_line(line, f"{codes.BAD_REQUEST.message}: {error}")
                continue
            self._carry_out(command, line)

    def dropped(self) -> None:
        for following in self._followings.values():
            following.stop()
        self._followings.clear()
        for task in self._tasks or ():
            task.cancel()
        self.on_dropped(self)

    def ending(self, *, slow: bool) -> tuple[int, str]:
        return codes.SLOW if slow else codes.SHUTDOWN

    # What its subscriptions use.

    def write_chunk(self, frames: bytes) -> bool:
        self._flush()
        return self._connection.write_chunk(frames)

    async def send(self, frames: bytes) -> None:
        self._flush()
        await self._connection.drain()
        self._connection.write(frames)

    def say(self, text: bytes) -> None:
        self._out.append(text)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def close(self, ending: Ending) -> None:
        self._flush()
        self._connection.close(*ending)

    def unsubscribed(self, channel: str, ending: Ending) -> None:
        self._followings.pop(channel, None)
        self.say(push(channel, b"unsubscribe", _encode({"code": ending.code, "reason": ending.reason})))

    def ping(self, now: float) -> None:
        """Ask whether the client is still there. It answers with an empty command."""
        self.pinged_at, self.ponged = now, False
        self.say(b"{}")

    # Commands.

    def _carry_out(self, command: Command, line: bytes) -> None:
        method = method_of(command)
        if not method:
            self.ponged = True
            if command.id:
                self._refuse(command.id or 0, codes.METHOD_NOT_FOUND)
            return
        if not self.connected and method != "connect":
            self._refuse(command.id or 0, codes.UNAUTHORIZED._replace(message="send connect first"))
            return
        if self._unanswered >= MAX_UNANSWERED:
            self._refuse(command.id or 0, codes.TOO_MANY_REQUESTS)
            return
        try:
            self._begin(command, method, line)
        except GaplessError as error:
            self._refuse(command.id or 0, error_code(error))

    def _begin(self, command: Command, method: str, line: bytes) -> None:
        id_ = command.id or 0
        match method:
            case "connect" if command.connect is not UNSET:
                self._connect(id_, command.connect)
            case "subscribe" if command.subscribe is not UNSET:
                request = command.subscribe
                self._subscribe(id_, request)
            case "unsubscribe" if command.unsubscribe is not UNSET:
                self._unsubscribe(id_, command.unsubscribe)
            case "publish":
                self._publish(command, line)
            case "history" if command.history is not UNSET:
                self._run(id_, self._read_history(id_, command.history))
            case "ping":
                self._answer(id_, b"ping", b"{}")
            case "refresh":
                self._answer(id_, b"refresh", _encode({"client": self.id, "version": f"Gapless {VERSION}"}))
            case "sub_refresh":
                self._answer(id_, b"sub_refresh", b"{}")
            case _:
                self._refuse(id_, codes.NOT_AVAILABLE)

    def _connect(self, id_: int, request: ConnectRequest) -> None:
        if self.connected:
            self._refuse(id_, codes.BAD_REQUEST._replace(message="this connection is connected already"))
            return
        if len(request.subs) > MAX_CHANNELS:
            self._refuse(id_, codes.LIMIT_EXCEEDED)
            return
        self.connected = True
        about: dict[str, Any] = {
            "client": self.id,
            "version": f"Gapless {VERSION}",
            "ping": int(PING_S),
            "pong": True,
        }
        if not request.subs:
            self._answer(id_, b"connect", _encode(about))
            return
        self._run(id_, self._connect_with(id_, about, request.subs))

    async def _connect_with(self, id_: int, about: dict[str, Any], subs: dict[str, SubscribeRequest]) -> None:
        """Answer once all subscriptions of the connect are open. One that is refused is left out. Their
        events come after the answer."""
        answered = asyncio.Event()
        found: dict[str, dict[str, Any]] = {}
        begun: list[asyncio.Event] = []

        def begin(request: SubscribeRequest) -> None:
            known = asyncio.Event()

            async def opened(subscription: LiveSubscription) -> None:
                found[request.channel] = _subscribed(request, subscription)
                known.set()
                await answered.wait()

            try:
                following = self._follow(request, opened, lambda error: None)
            except GaplessError:
                return
            assert following.task is not None, "it was begun"
            following.task.add_done_callback(lambda _: known.set())
            begun.append(known)

        for channel, request in subs.items():
            request.channel = channel
            begin(request)
        for known in begun:
            await known.wait()
        about["subs"] = found
        self._answer(id_, b"connect", _encode(about))
        answered.set()

    def _subscribe(self, id_: int, request: SubscribeRequest) -> None:
        if request.channel in self._followings:
            self._refuse(id_, codes.ALREADY_SUBSCRIBED)
            return
        if len(self._followings) >= MAX_CHANNELS:
            self._refuse(id_, codes.LIMIT_EXCEEDED)
            return

        async def opened(subscription: LiveSubscription) -> None:
            found = _subscribed(request, subscription)
            if request.flag & NEEDS_RECOVERY and found.get("was_recovering") and not found.get("recovered"):
                self._refuse(id_, codes.UNRECOVERABLE_POSITION)
                raise ConnectionResetError
            self._answer(id_, b"subscribe", _encode(found))

        def refused(error: GaplessError) -> None:
            # The engine refuses a cursor that lies in the future. It is no position of this log.
            is_position = request.recover and error.status == 400
            self._refuse(id_, codes.UNRECOVERABLE_POSITION if is_position else error_code(error))

        self._follow(request, opened, refused)

    def _follow(
        self,
        request: SubscribeRequest,
        opened: Callable[[LiveSubscription], Awaitable[None]],
        refused: Callable[[GaplessError], None],
    ) -> Following:
        """Begin a subscription. Raises `invalid_request`."""
        channel = request.channel
        selection = _selection(self._parts.namespace, request)
        following = Following(channel, self, self._parts.live, self._parts.read)
        start = _start(request, selection)

        def ended(_: asyncio.Task[None]) -> None:
            if self._followings.get(channel) is following:
                del self._followings[channel]

        self._followings[channel] = following
        following.task = asyncio.create_task(following.follow(selection, start, opened, refused))
        following.task.add_done_callback(ended)
        return following

    def _unsubscribe(self, id_: int, request: ChannelRequest) -> None:
        following = self._followings.pop(request.channel, None)
        if following is not None:
            following.stop()
        self._answer(id_, b"unsubscribe", b"{}")

    # Publishing.

    def _publish(self, command: Command, line: bytes) -> None:
        """Queue a publish; it is answered once it is committed. Publishes of one client are stored in the
        order of its commands."""
        assert command.publish is not UNSET, "the command is a publish"
        json.check_parts(line)
        try:
            message, keys = parse_addressed(command.publish, line)
        except FAILURES as error:
            refuse(line, error)
        json.check_text(line, keys + 1 + (command.id is not UNSET))
        id_, parts = command.id or 0, self._parts
        if message.ephemeral:
            body = encode_ephemeral(message, time.time_ns() // 1000)
            hint = EphemeralHint(parts.namespace, message.channel, message.type, message.key, body)
            parts.exchange.publish_ephemeral(hint)
            self._answer(id_, b"publish", b"{}")
            return
        append = Append(parts.namespace, (message,), None, b"", None, len(line))
        outcome = parts.publisher.submit(append)
        self._unanswered += 1
        outcome.add_done_callback(lambda done: self._published(id_, done))

    def _published(self, id_: int, outcome: asyncio.Future[Appended]) -> None:
        self._unanswered -= 1
        if outcome.cancelled():
            return
        error = outcome.exception()
        if error is None:
            PUBLISHED.inc()
            self._answer(id_, b"publish", encode_positions(outcome.result().positions))
        else:
            known = (
                error if isinstance(error, GaplessError) else GaplessError(Code.INTERNAL, "the server failed")
            )
            self._refuse(id_, error_code(known))

    # History.

    async def _read_history(self, id_: int, request: HistoryRequest) -> None:
        """One at a time: the messages of an answer are held until the client has taken the ones before."""
        if self._reading is None:
            self._reading = asyncio.Lock()
        async with self._reading:
            await self._history(id_, request)
            self._flush()

    async def _history(self, id_: int, request: HistoryRequest) -> None:
        """Answer with publications, and with the position at which the channel stands; no publication lies
        behind that position."""
        parts, channel = self._parts, check_channel(request.channel)
        since = request.since or Since()
        unborn_at = parts.live.watermark.settled
        place = await parts.read.place_at(parts.namespace, channel, since.offset)
        epoch = parts.live.epoch
        standing = standing_of(AfterSeq(since.offset, since.epoch), epoch, place)
        if request.since is not None and standing is not Standing.HOLDS:
            raise GaplessError(Code.CURSOR_EXPIRED, "this is no position of the channel")
        if place is None:
            none = _encode(str(ChannelEpoch(epoch, 0, unborn_at)))
            self._answer(id_, b"history", b'{"publications":[],"epoch":%b,"offset":0}' % none)
            return
        if request.since is not None and since.offset < place.first_seq - 1 and not request.reverse:
            raise GaplessError(Code.CURSOR_EXPIRED, "messages after this position are gone")
        messages = await self._messages(request, place) if request.limit else []
        content = b",".join([publication(m, encode_message) for m in messages if m.seq <= place.last_seq])
        await self._connection.drain()
        named = _encode(str(ChannelEpoch(epoch, place.channel_id)))
        body = b'{"publications":[%b],"epoch":%b,"offset":%d}' % (content, named, place.last_seq)
        self._answer(id_, b"history", body)

    async def _messages(self, request: HistoryRequest, place: Place) -> list[Message]:
        """The messages after the position, or before it from the newest on."""
        after, before = (None, None) if request.since is None else (place.id, None)
        if request.reverse:
            after, before = None, after
        limit = MAX_HISTORY if request.limit < 0 else min(request.limit, MAX_HISTORY)
        parts, ascending = self._parts, not request.reverse
        query = HistoryQuery(
            parts.namespace, request.channel, after, before, None, (), (), limit, ascending
        )  # fmt: skip
        return (await parts.history.history(query))[0]

    # Answers.

    def _run(self, id_: int, work: Coroutine[Any, Any, None]) -> None:
        """Carry out a command that has to wait."""
        self._unanswered += 1
        task = asyncio.create_task(self._finish(id_, work))
        if self._tasks is None:
            self._tasks = set()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _finish(self, id_: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except GaplessError as error:
            self._refuse(id_, error_code(error))
        except Exception:
            logger.exception("a command failed")
            self._refuse(id_, codes.INTERNAL)
        finally:
            self._unanswered -= 1

    def _answer(self, id_: int, method: bytes, content: bytes) -> None:
        if id_:
            self.say(b'{"id":%d,"%b":%b}' % (id_, method, content))

    def _refuse(self, id_: int, error: ErrorCode) -> None:
        said: dict[str, Any] = {"code": error.code, "message": error.message}
        if error.temporary:
            said["temporary"] = True
        self.say(b'{"id":%d,"error":%b}' % (id_, _encode(said)))

    def _refuse_line(self, line: bytes, why: str) -> None:
        """Refuse what is no command. A client that goes on so is cut off."""
        self._strikes += 1
        self._refuse(id_of(line), codes.BAD_REQUEST._replace(message=why))
        if self._strikes >= MAX_STRIKES:
            self.close(codes.TOO_MANY_ERRORS)

    def _flush(self) -> None:
        self._flushing = False
        if self._out:
            text, self._out = b"\n".join(self._out), []
            self._connection.write(text_frame(text))


def _selection(namespace: str, request: SubscribeRequest) -> Selection:
    """Raises `invalid_request`."""
    asked, channel = request.selection, check_name(request.channel)
    if asked is None:
        check_pattern(channel)
        names = [channel]
        types: list[str] = []
        keys: list[str] = []
    else:
        if not channel:
            raise invalid("channel", "is the name of the selection, and must not be empty")
        names, types, keys = asked.channel, asked.type, asked.key
        if not 0 < len(names) <= MAX_CHANNELS:
            raise invalid("selection.channel", f"names 1 to {MAX_CHANNELS} channels")
        for name in names:
            check_pattern(name)
    check_budget(names, "channel")
    plain = [name for name in names if not is_pattern(name)]
    patterns = [name for name in names if is_pattern(name)]
    return select(namespace, plain, patterns, list(map(check_type, types)), list(map(check_key, keys)))


def _start(request: SubscribeRequest, selection: Selection) -> Start:
    if not request.recover:
        return Latest()
    if selection.single is not None:
        return AfterSeq(request.offset, request.epoch)
    return After(request.offset)


def _subscribed(request: SubscribeRequest, subscription: LiveSubscription) -> dict[str, Any]:
    """The answer to a subscribe."""
    opened = subscription.opened
    assert opened is not None, "every start of a session has one"
    found: dict[str, Any] = {"recoverable": True, "positioned": True}
    found |= {"epoch": str(opened.epoch), "offset": opened.seq}
    if request.recover:
        found |= {"was_recovering": True, "recovered": opened.holds}
    return found
