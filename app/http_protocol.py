"""uvicorn's HTTP protocol with limits on what a client may send and how long it may take.

`uvicorn.Config(http=GaplessHttpProtocol)` uses it. Each refusal is a problem document with a request id and
ends the connection. Limits:

- request target 16 KiB (414), 100 header fields or 32 KiB of them (431)
- exactly one Host on HTTP/1.1 (400); framing that two readers could understand differently (400)
- head complete within 10 s of its first byte, body never still for 10 s nor slower than 500 bytes/s (408)
- 64 MiB on the wire for one request, 64 KiB of it without a byte of body (trailers, chunk extensions)

A request's `scope["extensions"]["gapless"]` is the connection itself, for `abort` and `write_buffer_size`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections import Counter
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from typing import Any, Final, Literal
from weakref import WeakKeyDictionary

import httptools
from starlette.types import Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from app import problem
from app.problem import Headers
from subscriptions.domain.errors import Code, GaplessError

logger = logging.getLogger("gapless.http")

MAX_TARGET_BYTES: Final = 16 * 1024
MAX_FIELDS: Final = 100
MAX_FIELDS_BYTES: Final = 32 * 1024
MAX_HEAD_BYTES: Final = MAX_TARGET_BYTES + MAX_FIELDS_BYTES + 1024
MAX_REQUEST_BYTES: Final = 64 * 1024 * 1024
MAX_SILENT_BYTES: Final = 64 * 1024
MAX_DRAINED_BYTES: Final = 1024 * 1024
MIN_BODY_BYTES_PER_S: Final = 500

refusals: Counter[Code] = Counter()
"""How many requests this process refused before they reached the application, by code."""

_REQUEST_LINE: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,32} [/*]")
_ALLOW: Final = b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"


class _Phase(Enum):
    IDLE = "between requests"
    HEAD = "receiving a head"
    BODY = "receiving a body"
    DRAIN = "refused; what still arrives is thrown away so that the answer is not lost to a reset"


class _RefusedError(Exception):
    """Leaves a parser callback; httptools hands it on as the context of its own error."""

    def __init__(self, error: GaplessError) -> None:
        super().__init__(error.detail)
        self.error = error


class _Event:
    """asyncio.Event without the queue of waiters that each of those keeps, used or not (some 800 bytes)."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self, is_set: bool = False) -> None:
        self._is_set = is_set
        self._waiters: list[asyncio.Future[None]] | None = None

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        self._is_set = False

    async def wait(self) -> Literal[True]:
        while not self._is_set:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            # Those that gave up are left behind here, so that waiting with a time limit gathers none.
            self._waiters = [*(w for w in self._waiters or () if not w.done()), waiter]
            await waiter
        return True


class _Pipeline(list[Any]):
    """The part of a deque that uvicorn uses, for requests that wait their turn; empty on most connections."""

    __slots__ = ()

    def appendleft(self, item: Any) -> None:
        self.insert(0, item)


class Watch:
    """The connections of one server that owe bytes, each with the moment (loop time) it must have sent them.

    One timer serves them all and runs only while there are any: an idle stream costs nothing here.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, tick_s: float) -> None:
        self._loop = loop
        self._tick_s = tick_s
        self._owing: dict[GaplessHttpProtocol, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._owing)

    def __contains__(self, connection: object) -> bool:
        return connection in self._owing

    def expect(self, connection: GaplessHttpProtocol, by: float) -> None:
        """Have the connection's `timed_out` called at `by`, within one tick, unless it is dropped before."""
        self._owing[connection] = by
        if self._timer is None:
            self._timer = self._loop.call_later(self._tick_s, self._tick)

    def drop(self, connection: GaplessHttpProtocol) -> None:
        """Expect nothing of the connection any more."""
        self._owing.pop(connection, None)

    def _tick(self) -> None:
        now = self._loop.time()
        for connection in [c for c, by in self._owing.items() if by <= now]:
            connection.timed_out(now)
        self._timer = self._loop.call_later(self._tick_s, self._tick) if self._owing else None


_watches: WeakKeyDictionary[ServerState, Watch] = WeakKeyDictionary()


class GaplessHttpProtocol(HttpToolsProtocol):
    """One connection. The class attributes are in seconds; tests make them shorter."""

    # The base class stays just below the number of attributes up to which instances share their keys, so
    # what is added here lives in slots: a connection is paid for ten thousand times.
    __slots__ = (
        "_extensions",
        "_phase",
        "_phase_began",
        "_received",
        "_segment",
        "_silent",
        "_watch",
        "on_lost",
    )

    patience_s: float = 9.5
    linger_s: float = 2.0
    tick_s: float = 0.5

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        watch = _watches.get(server_state)
        if watch is None:
            watch = _watches[server_state] = Watch(self.loop, self.tick_s)
        self._watch = watch
        self.pipeline = _Pipeline()  # type: ignore[assignment]
        self._extensions: dict[str, Any] = {"gapless": self}
        self.on_lost: Callable[[], None] | None = None
        """Called once when the connection is gone; a stream handler sets it instead of watching `receive`."""
        self._phase = _Phase.IDLE
        self._phase_began = 0.0
        self._received = 0  # Bytes of this request before the segment being parsed.
        self._segment = 0  # Bytes of that segment.
        self._silent = 0  # Bytes since the last byte of body.

    # What the application may do with the connection.

    def abort(self) -> None:
        """Close at once; what is still buffered is thrown away."""
        self.transport.abort()

    def write_chunk(self, data: bytes) -> bool:
        """Write a chunk of a streamed answer at once and say so, or do nothing: when bytes still wait here,
        or the answer has not begun or is over. Many connections may be given the same `data`."""
        cycle = self.cycle
        if self.transport.get_write_buffer_size() or not cycle.response_started or cycle.response_complete:
            return False
        self.transport.write(_framed(data))
        return True

    def write_last(self, data: bytes, linger_s: float) -> None:
        """End a streamed answer with these bytes behind all that still waits here, for a client that has not
        been reading: it has `linger_s` seconds to take them before the connection is cut."""
        self.cycle.response_complete = True
        self.transport.write(_framed(data) + b"0\r\n\r\n")
        self.transport.close()
        self.loop.call_later(linger_s, self.transport.abort)

    def write_buffer_size(self) -> int:
        """Bytes written and not yet taken by the kernel."""
        return self.transport.get_write_buffer_size()

    # Called by the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow._is_writable_event = _Event(is_set=True)  # type: ignore[assignment]
        self._watch.expect(self, self.loop.time() + self.patience_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._watch.drop(self)
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()
            self.on_lost = None

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._segment = len(data)
        self._silent += self._segment
        if self._phase is _Phase.DRAIN:
            if self._silent > MAX_DRAINED_BYTES:
                self.abort()
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(self._why(error, data))
        else:
            self._received += self._segment
            self._expect_more()

    # Called by the parser.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = self._extensions
        self._enter(_Phase.HEAD)

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > MAX_TARGET_BYTES:
            raise _RefusedError(
                GaplessError(Code.URI_TOO_LONG, f"the target is longer than {MAX_TARGET_BYTES} bytes")
            )

    def on_headers_complete(self) -> None:
        self._check_head()
        if self.parser.should_upgrade() and not self._should_upgrade():
            return  # The parser ends the message here; `_upgrade` begins it anew.
        super().on_headers_complete()
        self._enter(_Phase.BODY)
        if not self.parser.should_upgrade():
            self.cycle.message_event = _Event()  # type: ignore[assignment]
            # Trailers would be added to the headers that the application is already reading.
            self.headers = []

    def on_body(self, body: bytes) -> None:
        self._silent = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._phase is _Phase.BODY:
            super().on_message_complete()
            self._phase = _Phase.IDLE

    # Limits.

    def timed_out(self, now: float) -> None:
        """The client sent nothing, or too little, for too long; `now` is loop time in seconds."""
        cycle = self.cycle
        if self._phase is _Phase.BODY and (self.flow.read_paused or cycle.waiting_for_100_continue):
            # It waits for us: the application has not asked for more yet.
            self._phase_began, self._received = now, 0
            self._watch.expect(self, now + self.patience_s)
        elif self._phase is _Phase.HEAD or (self._phase is _Phase.BODY and not cycle.response_complete):
            self._refuse(GaplessError(Code.REQUEST_TIMEOUT, "the request did not arrive in time"))
        else:
            self._watch.drop(self)
            self._close()

    def _close(self) -> None:
        if self._phase is _Phase.DRAIN:
            self.abort()
        else:
            self.transport.close()

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        self._received = 0
        self._silent = 0
        self._phase_began = -1.0

    def _check_head(self) -> None:
        headers = self.headers
        if self.parser.get_method() == b"CONNECT":
            raise _RefusedError(GaplessError(Code.METHOD_NOT_ALLOWED, "this is no proxy"))
        if len(headers) > MAX_FIELDS:
            raise _RefusedError(_too_many_fields())
        # The exact count is worth its time only when this many bytes, target and body among them, arrived.
        if self._received + self._segment > MAX_FIELDS_BYTES < sum(len(n) + len(v) for n, v in headers):
            raise _RefusedError(_too_many_fields())
        if sum(name == b"host" for name, _ in headers) != 1 and self.parser.get_http_version() == "1.1":
            raise _RefusedError(_bad_request("exactly one Host header is required"))

    def _expect_more(self) -> None:
        """After a segment was parsed: say by when the next one must come, or that none is due."""
        if self._phase is _Phase.IDLE:
            self._watch.drop(self)
            self._keep_alive()
            return
        error = self._excess()
        if error is not None:
            self._refuse(error)
            return
        now = self.loop.time()
        if self._phase_began < 0:
            self._phase_began = now
        by = self._phase_began + self.patience_s
        if self._phase is _Phase.BODY:
            by = min(now + self.patience_s, by + self._received / MIN_BODY_BYTES_PER_S)
        self._watch.expect(self, by)

    def _excess(self) -> GaplessError | None:
        """What is already too much of a request that is not complete."""
        too_many_fields = len(self.headers) > MAX_FIELDS
        if self._phase is _Phase.HEAD:
            return _too_many_fields() if too_many_fields or self._received > MAX_HEAD_BYTES else None
        if too_many_fields or self._silent > MAX_SILENT_BYTES:
            return _bad_request("too many bytes of the body are not body")
        if self._received > MAX_REQUEST_BYTES:
            return GaplessError(Code.PAYLOAD_TOO_LARGE, f"longer than {MAX_REQUEST_BYTES} bytes")
        return None

    def _keep_alive(self) -> None:
        # Any bytes stop the keep-alive timer. When they did not lead to a request (a body that came after its
        # answer, empty lines), nobody else would start it again.
        if self.timeout_keep_alive_task is None and (self.cycle is None or self.cycle.response_complete):
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _upgrade(self, rest: bytes) -> None:
        """Go over to WebSocket. Any other offer (Java's HttpClient makes one for HTTP/2 with each request) is
        ignored; since the parser takes no body after one, it gets the head again, without the offer."""
        if self._should_upgrade():
            self._watch.drop(self)
            self.handle_websocket_upgrade()
            return
        line = b"%b %b HTTP/%b\r\n" % (
            self.parser.get_method(),
            self.url,
            self.parser.get_http_version().encode(),
        )
        fields = b"".join(b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.data_received(line + fields + b"\r\n" + rest)

    # Refusals.

    def _why(self, error: httptools.HttpParserError, data: bytes) -> GaplessError:
        if isinstance(error.__context__, _RefusedError):
            return error.__context__.error
        if isinstance(error, httptools.HttpParserInvalidMethodError) and _REQUEST_LINE.match(data):
            return GaplessError(Code.METHOD_NOT_ALLOWED, "no such method")
        return _bad_request("not a valid HTTP request")

    def _refuse(self, error: GaplessError) -> None:
        """Answer with a problem and close; only close when another answer is due or under way."""
        refusals[error.code] += 1
        logger.debug("refused before routing: %s", error.detail, extra={"code": error.code.value})
        if not self._may_answer():
            self._watch.drop(self)
            self.abort()
            return
        if self._phase is _Phase.BODY:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._enter(_Phase.DRAIN)
        self._watch.expect(self, self.loop.time() + self.linger_s)
        if not self.transport.is_closing():
            self.transport.write(self._answer(error))
            if self.transport.can_write_eof():
                self.transport.write_eof()

    def _may_answer(self) -> bool:
        """Whether nothing of this answer would get into, or follow, that of the application."""
        cycle = self.cycle
        if self._phase is _Phase.BODY:
            return not cycle.response_started and not self.pipeline
        return cycle is None or cycle.response_complete

    def _answer(self, error: GaplessError) -> bytes:
        status, headers, body = problem.render(error)
        headers += self.server_state.default_headers
        headers += [(b"x-request-id", uuid.uuid4().hex.encode()), (b"connection", b"close")]
        if status == 405:
            headers.append((b"allow", _ALLOW))
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        return STATUS_LINE[status] + lines + b"\r\n" + body


async def answer(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a whole answer. On a connection of this server that is one write, where ASGI's two messages would
    be two: for a short answer the write is most of the work. `headers` hold the content length."""
    cycle = getattr(send, "__self__", None)
    if isinstance(cycle, RequestResponseCycle) and _takes_one_write(cycle):
        lines = [STATUS_LINE[status]]
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        lines += (b"\r\n", body)
        cycle.response_started = cycle.response_complete = True
        cycle.transport.write(b"".join(lines))
        cycle.message_event.set()
        cycle.on_response()
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def answer_json(
    scope: Scope, send: Send, status: int, content: bytes, *, replayed: bool = False
) -> None:
    """Send JSON as a whole answer. `replayed`: it is that of an earlier request with the same key."""
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(content)),
        (b"x-request-id", scope["state"]["request_id"]),
    ]
    if replayed:
        headers.append((b"idempotent-replayed", b"true"))
    await answer(send, status, headers, content)


def _takes_one_write(cycle: RequestResponseCycle) -> bool:
    """Whether nothing out of the ordinary is to be said or waited for: the base class knows all of that."""
    if cycle.response_started or cycle.disconnected or not cycle.keep_alive:
        return False
    return not cycle.default_headers and not cycle.flow.write_paused


@lru_cache(maxsize=1)
def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _bad_request(detail: str) -> GaplessError:
    return GaplessError(Code.INVALID_REQUEST, detail, status=400)


def _too_many_fields() -> GaplessError:
    return GaplessError(
        Code.HEADERS_TOO_LARGE, f"more than {MAX_FIELDS} header fields or {MAX_FIELDS_BYTES} bytes of them"
    )
