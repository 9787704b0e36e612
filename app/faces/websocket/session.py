"""The session of a WebSocket client: takes its commands, in their order."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET

from app import VERSION
from app.faces.live import LiveDependencies
from app.faces.websocket import codes
from app.faces.websocket.codes import Ending, error_code
from app.faces.websocket.commands import (
    Command,
    ConnectRequest,
    SubscribeRequest,
    id_of,
    method_of,
    read_command,
    split,
)
from app.faces.websocket.consuming import Queues
from app.faces.websocket.framing import Framing
from app.faces.websocket.history import read_history
from app.faces.websocket.members import COMMANDS, Members
from app.faces.websocket.own_token import expiry
from app.faces.websocket.presence import read_presence, read_presence_stats
from app.faces.websocket.publications import push
from app.faces.websocket.publishing import publish
from app.faces.websocket.replies import Replies
from app.faces.websocket.subscribing import Subscribing
from app.http.bearer import EXPIRED
from app.http.principals import Principals
from app.message.refusals import FAILURES, reason_of
from subscriptions.domain.errors import Code, GaplessError, unauthenticated
from subscriptions.domain.goodbye import Goodbye
from subscriptions.domain.presence import ClientInfo
from subscriptions.domain.principal import Action, Principal
from subscriptions.domain.selection import MAX_CHANNELS
from subscriptions.engine.exchange import Exchange
from subscriptions.engine.live.engine import LiveEngine
from subscriptions.engine.presence import Presence
from subscriptions.engine.publisher import Publisher
from subscriptions.ports import HistoryPort, ReadPort

MAX_STRIKES: Final = 3
MAX_EARLY: Final = 256
"""Commands that wait until it is known whose credential their `connect` has."""
MAX_EARLY_BYTES: Final = 128 * 1024
"""Of these commands together. A thousand strangers of one address may be there."""
PING_S: Final = 25.0
PONG_S: Final = 10.0
CONNECT_S: Final = 5.0

ACTIONS: Final = (Action.SUBSCRIBE, Action.PUBLISH, Action.CONSUME)
"""A client is granted one of them on something."""

_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Parts:
    """What sessions use of the service."""

    live: LiveEngine
    read: ReadPort
    publisher: Publisher
    exchange: Exchange
    history: HistoryPort
    presence: Presence
    queues: Queues
    principals: Principals


class Connection(Protocol):
    """What a session writes to: a WebSocket, or a streamed answer."""

    @property
    def is_closing(self) -> bool: ...

    def write(self, frames: bytes) -> None: ...

    def write_chunk(self, frames: bytes) -> bool: ...

    def queue(self, size_bytes: int) -> None: ...

    async def taken(self) -> None: ...

    def close(self, code: int, reason: str) -> None: ...


class Session:
    """One client. It is silent until its `connect`."""

    __slots__ = (
        "_connection",
        "_early",
        "_greeting",
        "_members",
        "_parts",
        "_principal",
        "_reading",
        "_replies",
        "_strikes",
        "_subscribing",
        "_unwatch",
        "_writing",
        "address",
        "began_at",
        "connected",
        "framing",
        "id",
        "on_dropped",
        "pinged_at",
        "ponged",
    )

    def __init__(
        self,
        connection: Connection,
        framing: Framing,
        parts: Parts,
        principal: Principal,
        on_dropped: Callable[[Session], None],
        greeting: dict[str, str] | None = None,
        *,
        address: str = "",
    ) -> None:
        """`greeting` is added to the reply to its connect. `address`: of the client."""
        self.address = address
        self.id = str(uuid.uuid4())
        self.framing = framing
        self.connected = False
        self.began_at = self.pinged_at = time.monotonic()
        self.ponged = True
        self.on_dropped = on_dropped
        self._connection = connection
        self._parts = parts
        self._principal = principal
        self._greeting = greeting or {}
        self._replies = Replies(connection, framing)
        info = ClientInfo(self.id, principal.subject, time.time_ns() // 1000)
        self._subscribing = Subscribing(
            self,
            info,
            self._replies,
            principal,
            LiveDependencies(parts.live, parts.read, parts.presence),
        )
        self._members: Members | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._strikes = 0
        self._early: list[tuple[Command, bytes]] | None = None
        """Commands that came while the credential of `connect` is looked for; None: it is not. The official
        JavaScript client sends its subscriptions together with `connect`."""
        self._reading: asyncio.Lock | None = None
        self._writing: asyncio.Lock | None = None

    def __repr__(self) -> str:
        return f"Session({self.id}, {self._subscribing!r}, {self._replies!r})"

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
                self._refuse_line(line, f"{codes.BAD_REQUEST.message}: {reason_of(error)}")
                continue
            self._carry_out(command, line)

    def begun(self) -> None:
        """Its connection is there: it ends with the credential. A connection that was closed before has told
        so already."""
        if self._connection.is_closing:
            return
        self._unwatch = self._principal.lifetime.watch(partial(self.close, codes.CREDENTIAL_EXPIRED))

    def dropped(self) -> None:
        self._unwatch()
        self._subscribing.stop()
        if self._members is not None:
            self._members.stop(Goodbye.CREDENTIAL_EXPIRED if self._principal.lifetime.over else None)
        self._replies.stop()
        self.on_dropped(self)

    def stop(self) -> None:
        self.close(codes.SHUTDOWN)

    def slow_ending(self) -> tuple[int, str]:
        return codes.SLOW

    # What its subscriptions use.

    def write_chunk(self, frames: bytes) -> bool:
        self._replies.flush()
        return self._connection.write_chunk(frames)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        if self._writing is None:
            self._writing = asyncio.Lock()
        async with self._writing:
            self._replies.flush()
            await self._connection.taken()
            if self._connection.is_closing:
                raise ConnectionResetError
            yield

    def write(self, frames: bytes) -> None:
        self._replies.flush()
        self._connection.write(frames)

    def queue(self, size_bytes: int) -> None:
        self._connection.queue(size_bytes)

    def say(self, text: bytes) -> None:
        self._replies.say(text)

    def close(self, ending: Ending) -> None:
        """End the connection. If the server stops, commands that are under way are answered first."""
        if ending is codes.SHUTDOWN and not self._replies.is_empty:
            self._replies.on_answered = partial(self._end, ending)
        else:
            self._end(ending)

    def _end(self, ending: Ending) -> None:
        self._replies.flush()
        self._connection.close(*ending)

    def unsubscribed(self, channel: str, ending: Ending) -> None:
        self._subscribing.forget(channel)
        self.say(push(channel, b"unsubscribe", _encode({"code": ending.code, "reason": ending.reason})))

    def ping(self, now: float) -> None:
        """Ask whether the client is still there. It answers with an empty command."""
        self.pinged_at, self.ponged = now, False
        self.say(b"{}")

    # Commands.

    def _carry_out(self, command: Command, line: bytes) -> None:
        id_, method = command.id or 0, method_of(command)
        if not method:
            self.ponged = True
            if id_:
                self._replies.refuse(id_, codes.METHOD_NOT_FOUND)
            return
        if not id_ and method != "send":
            self.close(codes.BAD_COMMAND)
            return
        if not self.connected and method != "connect":
            self._come_early(id_, command, line)
            return
        if self._replies.is_full or self._replies.on_answered is not None:
            self._replies.refuse(id_, codes.TOO_MANY_REQUESTS)
            return
        try:
            self._begin(command, method, line)
        except GaplessError as error:
            self._replies.refuse(id_, error_code(error))

    def _come_early(self, id_: int, command: Command, line: bytes) -> None:
        if self._early is None:
            self._replies.refuse(id_, codes.UNAUTHORIZED._replace(message="send connect first"))
        elif (
            len(self._early) >= MAX_EARLY
            or sum(len(each) for _, each in self._early) + len(line) > MAX_EARLY_BYTES
        ):
            self._replies.refuse(id_, codes.TOO_MANY_REQUESTS)
        else:
            self._early.append((command, line))

    def _begin(self, command: Command, method: str, line: bytes) -> None:
        id_, parts, replies, principal = command.id or 0, self._parts, self._replies, self._principal
        match method:
            case "connect" if command.connect is not UNSET:
                self._connect(id_, command.connect)
            case "subscribe" if command.subscribe is not UNSET:
                self._subscribe(id_, command.subscribe)
            case "unsubscribe" if command.unsubscribe is not UNSET:
                self._subscribing.unsubscribe(id_, command.unsubscribe)
            case "publish":
                publish(command, line, principal, replies, parts.publisher, parts.exchange)
            case "history" if command.history is not UNSET:
                asked = (principal, command.history, parts.live, parts.read, parts.history)
                self._run(id_, b"history", partial(read_history, *asked))
            case "presence" if command.presence is not UNSET:
                channel = command.presence.channel
                self._run(id_, b"presence", partial(read_presence, principal, channel, parts.presence))
            case "presence_stats" if command.presence_stats is not UNSET:
                stats = partial(read_presence_stats, principal, command.presence_stats.channel)
                self._run(id_, b"presence_stats", partial(stats, parts.presence))
            case "ping":
                replies.answer(id_, b"ping", b"{}")
            case "refresh" if command.refresh is not UNSET and command.refresh.token:
                self._authenticate(id_, command.refresh.token, partial(self._refresh, id_))
            case "refresh":
                replies.answer(id_, b"refresh", _encode(self._about()))
            case "sub_refresh" if command.sub_refresh is not UNSET and command.sub_refresh.token:
                request = command.sub_refresh
                self._authenticate(id_, request.token, partial(self._replace_own, id_, request.channel))
            case "sub_refresh":
                replies.answer(id_, b"sub_refresh", b"{}")
            case _ if method in COMMANDS:
                if self._members is None:
                    self._members = Members(self, replies, principal, parts.queues)
                self._members.take(id_, method, bytes(getattr(command, method)))
            case _:
                replies.refuse(id_, codes.NOT_AVAILABLE)

    def _connect(self, id_: int, request: ConnectRequest) -> None:
        if self.connected:
            again = codes.BAD_REQUEST._replace(message="this connection is connected already")
            self._replies.refuse(id_, again)
            return
        if len(request.subs) > MAX_CHANNELS:
            self._replies.refuse(id_, codes.LIMIT_EXCEEDED)
            return
        if any(asked.token for asked in request.subs.values()):
            raise unauthenticated("a subscription of connect takes no token: send it with subscribe")
        if request.token or self._principal.is_stranger:
            self._authenticate(id_, request.token, lambda who: self._identified(id_, request, who))
        else:
            self._connected(id_, request)

    def _authenticate(self, id_: int, token: str, then: Callable[[Principal], None]) -> None:
        """Find out whose token this is, then go on. A client whose token has expired is told so: it asks its
        application for another one."""
        if not token:
            self._refuse_token(id_, unauthenticated("this needs a credential: a token in connect"))
            return
        principals = self._parts.principals
        try:
            found = principals.of_text(token) if principals.ready else None
        except GaplessError as error:
            self._refuse_token(id_, error)
            return
        if found is not None:
            then(found)
            return

        async def look() -> None:
            try:
                then(await principals.find_text(token))
            except GaplessError as error:
                self._refuse_token(id_, error)
            early, self._early = self._early or [], None
            for command, line in early:
                self._carry_out(command, line)

        if not self.connected and self._early is None:
            self._early = []
        self._replies.run(id_, look)

    def _refuse_token(self, id_: int, error: GaplessError) -> None:
        error = self._parts.principals.refusals.judge(self.address, error)
        expired = error.code is Code.UNAUTHENTICATED and error.detail == EXPIRED
        self._replies.refuse(id_, codes.TOKEN_EXPIRED if expired else error_code(error))

    def _identified(self, id_: int, request: ConnectRequest, who: Principal) -> None:
        if self.connected:
            return  # Another connect came while the credential was looked for.
        who.require_any(ACTIONS)
        self._become(who)
        self._connected(id_, request)

    def _refresh(self, id_: int, who: Principal) -> None:
        """The client has a new token. What is open was opened under the old grants: with others it has to
        connect again."""
        mine = self._principal
        if (who.namespace, who.subject) != (mine.namespace, mine.subject):
            self.close(codes.INVALID_TOKEN)
            return
        if who.grants != mine.grants:
            self.close(codes.CREDENTIAL_EXPIRED)
            return
        self._become(who)
        self._replies.answer(id_, b"refresh", _encode(self._about()))

    def _subscribe(self, id_: int, request: SubscribeRequest) -> None:
        if not request.token:
            self._subscribing.subscribe(id_, request)
            return
        endings = self._subscribing.endings

        def identified(who: Principal) -> None:
            if endings != self._subscribing.endings:
                # Perhaps this one, while its token was looked at.
                self._replies.refuse(id_, codes.OVERTAKEN._replace(temporary=True))
                return
            self._require_same(who)
            self._subscribing.subscribe(id_, request, who)

        self._authenticate(id_, request.token, identified)

    def _replace_own(self, id_: int, channel: str, who: Principal) -> None:
        self._require_same(who)
        self._subscribing.replace_token(id_, channel, who)

    def _require_same(self, who: Principal) -> None:
        """Raises `forbidden` unless the token of a subscription is of the one who is connected."""
        mine = self._principal
        if (who.namespace, who.subject) != (mine.namespace, mine.subject):
            raise GaplessError(Code.FORBIDDEN, "the token is of another subject than that of the connection")

    def _become(self, who: Principal) -> None:
        self._unwatch()
        self._principal = who
        self._subscribing.identify(who, ClientInfo(self.id, who.subject, time.time_ns() // 1000))
        self._unwatch = who.lifetime.watch(partial(self.close, codes.CREDENTIAL_EXPIRED))

    def _connected(self, id_: int, request: ConnectRequest) -> None:
        self.connected = True
        about = self._about() | {"ping": int(PING_S), "pong": True} | self._greeting
        if not request.subs:
            self._replies.answer(id_, b"connect", _encode(about))
            return

        def opened(subs: dict[str, Any]) -> None:
            self._replies.answer(id_, b"connect", _encode(about | {"subs": subs}))

        self._replies.run(id_, self._subscribing.open_all(request.subs, opened))

    def _about(self) -> dict[str, Any]:
        about = {"client": self.id, "version": f"Gapless {VERSION}"}
        return about | expiry(self._principal)

    def _run(self, id_: int, method: bytes, read: Callable[[], Coroutine[Any, Any, bytes]]) -> None:
        self._replies.run(id_, partial(self._answer, id_, method, read))

    async def _answer(self, id_: int, method: bytes, read: Callable[[], Coroutine[Any, Any, bytes]]) -> None:
        """One at a time, and each once the client has taken what was written before. It is no `turn`: Redis
        may let a question wait for long."""
        if self._reading is None:
            self._reading = asyncio.Lock()
        async with self._reading:
            self._replies.flush()
            await self._connection.taken()
            self._replies.answer(id_, method, await read())
            self._replies.flush()

    def _refuse_line(self, line: bytes, why: str) -> None:
        """Refuse what is no command. A client that goes on so is cut off."""
        self._strikes += 1
        self._replies.refuse(id_of(line), codes.BAD_REQUEST._replace(message=why))
        if self._strikes >= MAX_STRIKES:
            self.close(codes.BAD_COMMAND)
