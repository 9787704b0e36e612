"""One WebSocket on asyncio: it sends commands, gives each its reply, and passes pushes to their streams."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, Literal

from gapless._config import Config
from gapless._errors import GaplessError, ProtocolError
from gapless._forks import Forkable, disconnect
from gapless._retry import Break, NoReply, Reply
from gapless._streams.commands import (
    Answer,
    Command,
    End,
    end_of,
    outcome_of,
    ping_seconds,
    read_line,
    refusal_of,
    unknown,
)
from gapless._streams.pushes import Address
from gapless._streams.sse import MAX_EVENT_BYTES

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

MAX_LINES = 500
MAX_BATCH_BYTES = 256 * 1024
"""Limits of one message to the server. The server takes 1000 commands in a message, and 2 MiB."""
READ_AHEAD_BYTES = 1024 * 1024
"""What may wait for the reader of one subscription, as JSON. One message may be larger."""
STALL_SECONDS = 0.05
"""How long a reader that is behind may hold up the others."""
CLOSE_SECONDS = 2.0


class Inlet:
    """Pushes that wait for the reader of one stream. If the reader stays behind, the link ends the
    subscription, and the reader opens it again where it is."""

    __slots__ = (
        "_bounded",
        "_room",
        "_waiting",
        "_waiting_bytes",
        "address",
        "end",
        "ending",
        "ending_asked",
        "left",
        "may_be_open",
        "news",
        "overrun",
        "settled",
    )

    def __init__(self, address: Address, ending: Command, *, bounded: bool, settled: bool) -> None:
        self.address = address
        self.ending = ending
        self.left = False
        self.overrun = False
        self.settled = settled
        self.ending_asked = False
        """Whether the reader is behind, and all that still comes is waited for."""
        self.may_be_open = False
        """Whether the command that opens it was sent and not refused, so that there is something to end."""
        self.end: End | None = None
        self.news = asyncio.Event()
        self._bounded = bounded
        self._room = asyncio.Event()
        self._waiting: deque[tuple[Mapping[str, Any], int]] = deque()
        self._waiting_bytes = 0

    def put(self, push: Mapping[str, Any], size: int) -> None:
        """Adds a push."""
        self._waiting.append((push, size))
        self._waiting_bytes += size
        self.news.set()

    @property
    def full(self) -> bool:
        """Whether nothing more should be added now."""
        is_bounded = self._bounded or self.ending_asked
        return not is_bounded and self._waiting_bytes > READ_AHEAD_BYTES

    async def room(self) -> bool:
        """Waits a moment until there is room again: a reader that only has much to read is soon through."""
        self._room.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(STALL_SECONDS):
                await self._room.wait()
        return not self.full

    def take(self) -> Mapping[str, Any] | None:
        """The next push; None if none waits."""
        if not self._waiting:
            return None
        push, size = self._waiting.popleft()
        self._waiting_bytes -= size
        if self._waiting_bytes < READ_AHEAD_BYTES // 2:
            self._room.set()
        return push

    def leave(self) -> None:
        """Its reader is gone."""
        self.left = True
        self._waiting.clear()
        self._waiting_bytes = 0
        self._room.set()
        self.news.set()

    def finish(self, end: End) -> None:
        """The connection has ended."""
        self.end = end
        self.news.set()


class _Asked:
    """A command that waits for its reply."""

    __slots__ = ("deadline", "inlet", "method", "outcome", "sent")

    def __init__(
        self,
        method: str,
        deadline: float,
        outcome: asyncio.Future[Reply | NoReply],
        inlet: Inlet | None,
    ) -> None:
        self.inlet = inlet
        self.method = method
        self.deadline = deadline
        self.outcome = outcome
        self.sent = False

    def mark_sent(self) -> None:
        """From here on it may have arrived."""
        self.sent = True
        if self.inlet is not None:
            self.inlet.may_be_open = True


_Queue = deque[tuple[bytes, _Asked | None]]
"""Lines to send, each with the command that waits for a reply to it."""


class AsyncLink(Forkable):
    """One open WebSocket, from its handshake until it ends for whatever reason. It never reconnects."""

    def __init__(self, socket: ClientConnection, timeout_seconds: float, lateness_seconds: float) -> None:
        self._socket = socket
        self._timeout_seconds = timeout_seconds
        self._lateness_seconds = lateness_seconds
        self._silence_seconds = timeout_seconds
        self._loop = asyncio.get_running_loop()
        self._heard_at = self._loop.time()
        self._ids = itertools.count(1)
        self._last_id = 0
        self._asked: dict[int, _Asked] = {}
        self._inlets: dict[Address, Inlet] = {}
        self._draining: set[asyncio.Task[None]] = set()
        # A stream of publishes must not hold up the pong, or what keeps leases.
        self._first: _Queue = deque()
        self._publishes: _Queue = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.end: End | None = None
        """Why it ended, once it has."""
        work = (self._read(), self._write(), self._watch())
        self._tasks = [self._loop.create_task(one) for one in work]
        super().__init__()

    def _after_fork(self) -> None:
        disconnect(self._socket.transport.get_extra_info("socket"))

    @property
    def date(self) -> str | None:
        """The `Date` of the handshake's answer."""
        response = self._socket.response
        return None if response is None else response.headers.get("Date")

    async def begin(self) -> Break | None:
        """Sends `connect`. Returns why that failed, if it did."""
        outcome = await self.ask(Command("connect", b"{}"))
        if not isinstance(outcome, Answer):
            return outcome
        self._silence_seconds = ping_seconds(outcome.content) + self._lateness_seconds
        return None

    async def ask(self, command: Command, inlet: Inlet | None = None) -> Reply | NoReply:
        """Sends a command. Its outcome is an `Answer`, the refusal as a reply over HTTP, or no reply.

        The pushes that come after an `Answer` go to `inlet`. Those before it are of a stream that had the
        same address and has ended. A command that is cancelled, or whose time is over, before it was sent is
        not sent. Publishes are sent in the order of their calls, all other commands before those that wait.
        """
        if self.end is not None:
            return unknown(self.end, sent=False)
        self._last_id = number = next(self._ids)
        deadline = self._loop.time() + self._timeout_seconds
        asked = self._asked[number] = _Asked(command.method, deadline, self._loop.create_future(), inlet)
        self._idle.clear()
        line = command.line(number), asked
        queue = self._publishes if command.method == "publish" else self._first
        queue.append(line)
        self._wake.set()
        try:
            return await asked.outcome
        finally:
            if not asked.sent:
                self._forget(number)
                with suppress(ValueError):  # It may have been passed over already.
                    queue.remove(line)

    def leave(self, inlet: Inlet) -> None:
        """Ends what brings these pushes, also if it is only being opened."""
        if self._inlets.get(inlet.address) is inlet:
            del self._inlets[inlet.address]
        inlet.leave()
        # The end of a member that was refused would end the one that has its name.
        if self.end is None and inlet.may_be_open and not inlet.overrun:
            self._say_unasked(inlet.ending)

    async def aclose(self) -> None:
        """Closes it, once the commands under way have their replies, or after the timeout."""
        if self.end is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_seconds):
                    await self._idle.wait()
        self._finish(NoReply("the connection was closed by its client"))
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._socket.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What comes.

    async def _read(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                message = await self._socket.recv()
                self._heard_at = self._loop.time()
                if not isinstance(message, str):
                    raise ProtocolError("the server sent a binary message")
                for line in message.split("\n"):
                    if line and (full := self._take(line)) is not None and not await full.room():
                        self._hold_back(full)
        except ConnectionClosed as closed:
            said = closed.rcvd if closed.rcvd_then_sent or closed.sent is None else closed.sent
            self._finish(end_of(None if said is None else said.code, "" if said is None else said.reason))
        except GaplessError as error:
            self._break(error)

    def _hold_back(self, inlet: Inlet) -> None:
        """Ends what brings these pushes. What is still on its way is passed over, since it comes again; if it
        is settled, it is taken."""
        if inlet.settled:
            inlet.ending_asked = True
            draining = self._loop.create_task(self._drain(inlet))
            self._draining.add(draining)
            draining.add_done_callback(self._draining.discard)
            return
        inlet.overrun = True
        inlet.news.set()
        self._say_unasked(inlet.ending)

    async def _drain(self, inlet: Inlet) -> None:
        """Nothing comes after the reply."""
        await self.ask(inlet.ending)
        inlet.overrun = True
        inlet.news.set()

    def _take(self, line: str) -> Inlet | None:
        """Takes a line. Returns the inlet that it filled."""
        said = read_line(line)
        if (push := said.get("push")) is not None:
            return self._take_push(push, len(line))
        if (number := said.get("id")) is not None:
            self._take_reply(number, said)
        elif not said:
            self._say(b"{}")
        else:
            raise ProtocolError(f"neither a reply nor a push: {line[:200]!r}")
        return None

    def _take_push(self, push: Any, size: int) -> Inlet | None:
        if not isinstance(push, dict):
            raise ProtocolError(f"not a push: {push!r:.200}")
        kind = "channel" if "channel" in push else "subscription"
        inlet = self._inlets.get((kind, str(push.get(kind))))
        # Pushes of a subscription that was just ended may still be on their way.
        if inlet is None or inlet.overrun:
            return None
        inlet.put(push, size)
        return inlet if inlet.full else None

    def _take_reply(self, number: Any, said: dict[str, Any]) -> None:
        if not isinstance(number, int) or not 0 < number <= self._last_id:
            raise ProtocolError(f"a reply to no command: {said!r:.200}")
        asked = self._asked.pop(number, None)
        if asked is None:
            return  # It comes after the timeout.
        try:
            outcome = outcome_of(asked.method, said)
        except ProtocolError as error:
            self._settle(asked, unknown(error, sent=True))
            raise
        inlet = asked.inlet
        if inlet is not None and not isinstance(outcome, Answer):
            inlet.may_be_open = False
        elif inlet is not None and not inlet.left:
            self._inlets[inlet.address] = inlet
        self._settle(asked, outcome)
        self._forget(number)

    # What goes.

    def _say_unasked(self, command: Command) -> None:
        """Sends a command whose reply nobody waits for."""
        self._last_id = next(self._ids)
        self._say(command.line(self._last_id))

    def _say(self, line: bytes) -> None:
        self._first.append((line, None))
        self._wake.set()

    async def _write(self) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while batch := self._batch():
                    await self._socket.send(batch, text=True)
        except ConnectionClosed:
            pass  # The reader is told why.

    def _batch(self) -> bytes:
        """As many lines as go into one message, if any wait. From here on they may have arrived.

        The caller sends it before anything else runs, so a command is settled as not sent only if it never
        will be.
        """
        lines: list[bytes] = []
        size = 0
        while (queue := self._first or self._publishes) and len(lines) < MAX_LINES:
            line, asked = queue[0]
            if asked is not None and asked.outcome.done():
                queue.popleft()
                continue
            if lines and size + len(line) > MAX_BATCH_BYTES:
                break
            queue.popleft()
            if asked is not None:
                asked.mark_sent()
            lines.append(line)
            size += len(line) + 1
        return b"\n".join(lines)

    # How it ends.

    async def _watch(self) -> None:
        """Ends the waiting for replies that do not come, and a connection that has fallen silent."""
        while self.end is None:
            await asyncio.sleep(min(self._timeout_seconds, self._silence_seconds, 2.0) / 4)
            now = self._loop.time()
            self._expire(now)
            if now - self._heard_at > self._silence_seconds:
                self._break(NoReply(f"the server was silent for {self._silence_seconds:g} s"))

    def _expire(self, now: float) -> None:
        for number, asked in list(self._asked.items()):
            if asked.deadline > now:
                return  # They are in the order of their deadlines.
            del self._asked[number]
            self._settle(asked, NoReply(f"no reply within {self._timeout_seconds:g} s", sent=asked.sent))
        self._idle.set()

    def _forget(self, number: int) -> None:
        """Waits no longer for the reply to this command."""
        self._asked.pop(number, None)
        if not self._asked:
            self._idle.set()

    def _settle(self, asked: _Asked, outcome: Reply | NoReply) -> None:
        if not asked.outcome.done():
            asked.outcome.set_result(outcome)

    def _break(self, end: End) -> None:
        """Drops a connection whose other side cannot be talked to."""
        self._finish(end)
        self._socket.transport.abort()

    def _finish(self, end: End) -> None:
        if self.end is not None:
            return
        self.end = end
        for asked in self._asked.values():
            self._settle(asked, unknown(end, sent=asked.sent))
        self._asked.clear()
        self._idle.set()
        for inlet in self._inlets.values():
            inlet.finish(end)


async def open_link(
    config: Config, lateness_seconds: float, ssl: SSLContext | None, proxy: str | Literal[True] | None
) -> AsyncLink | Break:
    """A link that has connected, or why there is none. Raises `ProtocolError`, and what the token raises."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import (
        InvalidHandshake,
        InvalidMessage,
        InvalidProxy,
        InvalidStatus,
        ProxyError,
    )

    class Connect(connect):
        # A redirect would take the credential to another server.
        def process_redirect(self, exc: Exception) -> Exception:
            return exc

    headers = config.headers()
    agent = headers.pop("User-Agent")
    address = "ws" + config.base_url.removeprefix("http") + "/v1/ws"
    options: dict[str, Any] = {} if ssl is None else {"ssl": ssl}
    try:
        socket = await Connect(
            address,
            additional_headers=headers,
            user_agent_header=agent,
            compression=None,
            proxy=proxy,
            open_timeout=config.timeout_seconds,
            close_timeout=CLOSE_SECONDS,
            ping_interval=None,
            max_size=MAX_EVENT_BYTES,
            **options,
        )
    except InvalidStatus as refused:
        response = refused.response
        found = {name.lower(): value for name, value in response.headers.raw_items()}
        return refusal_of(response.status_code, found, bytes(response.body or b""))
    except (OSError, TimeoutError, InvalidMessage, ProxyError) as error:
        return NoReply(f"{type(error).__name__}: {error}".removesuffix(": "), sent=False, cause=error)
    except (InvalidProxy, ValueError) as error:
        return NoReply(f"{type(error).__name__}: {error}", sent=False, passing=False, cause=error)
    except InvalidHandshake as error:
        raise ProtocolError(f"not a WebSocket: {error}") from error
    link = AsyncLink(socket, config.timeout_seconds, lateness_seconds)
    try:
        refusal = await link.begin()
    except BaseException:
        await link.aclose()
        raise
    if refusal is None:
        return link
    await link.aclose()
    if isinstance(refusal, NoReply):
        return NoReply(refusal.reason, sent=False, cause=refusal.cause)  # Nothing but `connect` was sent.
    return refusal
