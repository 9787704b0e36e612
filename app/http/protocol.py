"""uvicorn's HTTP protocol with limits on what a client may send and how long it may take.

`uvicorn.Config(http=GaplessHttpProtocol)` uses it. Each refusal is a problem document with a request id and
ends the connection. Limits:

- request target 16 KiB (414), 100 header fields or 32 KiB of them (431)
- HTTP/1.1 or 1.0 with exactly one Host (400), and what `app.http.browsers` refuses; framing that two readers
  could understand differently (400)
- head complete within 10 s of its first byte, body never still for 10 s nor slower than 500 bytes/s (408)
- 64 MiB on the wire for one request, 64 KiB of it without a byte of body (trailers, chunk extensions)
- connections, and the bytes held for all of them (see `app.http.connections`): the longest holder has to go
- requests and chunks that are parsed at once (see `app.http.turns`)
- a client that takes nothing of its answer for some seconds is cut off

A request's `scope["extensions"]["gapless"]` is the connection itself.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from enum import Enum
from typing import Any, Final
from urllib.parse import unquote

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from app.http import limits
from app.http.browsers.rules import Browsers
from app.http.connections import shared_by
from app.http.cycle import Cycle, Event, Flow, Pipeline, UnframedCycle, framed, has_body
from app.http.limits import MAX_FIELDS, MAX_FIELDS_BYTES, MAX_REQUEST_BYTES, MAX_TARGET_BYTES, fields_bytes
from app.http.problem import Headers
from app.http.turns import Turns
from app.http.websocket import WebSocketConnection
from app.metrics.registry import CUT_OFF
from subscriptions.domain.errors import Code, GaplessError

logger = logging.getLogger("gapless.http")

MAX_HEAD_BYTES: Final = MAX_TARGET_BYTES + MAX_FIELDS_BYTES + 1024
MAX_SILENT_BYTES: Final = 64 * 1024
MAX_DRAINED_BYTES: Final = 16 * 1024 * 1024

GOODBYE_S: Final = 2.0  # For a reader that was too slow, to take the bytes left and the reason.
MAX_CLOSED_AT_ONCE: Final = 64
MAX_LINGERING: Final = 200
"""How many connections beyond the limit may still read why they were refused."""

_REQUEST_LINE: Final = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,32} [/*]")


class _Phase(Enum):
    IDLE = "between requests"
    HEAD = "receiving a head"
    BODY = "receiving a body"
    DRAIN = "refused; bytes that still arrive are dropped so that no reset loses the answer"


class _RefusedError(Exception):
    """Raised in a parser callback; httptools passes it on as the context of its own error."""

    def __init__(self, error: GaplessError) -> None:
        super().__init__(error.detail)
        self.error = error


class GaplessHttpProtocol(Turns):
    """One connection. A server makes a subclass with its own `browsers`; the other class attributes are in
    seconds, and tests make them shorter."""

    # With more attributes, instances of the base class would not share their keys. So new ones are slots: the
    # memory of a connection is needed ten thousand times.
    __slots__ = (
        "_answering",
        "_begun",
        "_default_headers",
        "_extensions",
        "_offers_websocket",
        "_phase",
        "_phase_began",
        "_received",
        "_shared",
        "_watch",
        "goodbye",
        "on_lost",
    )

    max_connections: int = 25_000
    buffer_bytes: int = 128 * 1024 * 1024
    slow_reader_s: float = 10.0
    browsers: Browsers = Browsers()
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
        self._shared = shared_by(server_state, self.loop, self.tick_s, self.buffer_bytes)
        self._watch = self._shared.senders
        self.pipeline = Pipeline()  # type: ignore[assignment]
        self._extensions: dict[str, Any] = {"gapless": self}
        self.on_lost: Callable[[], None] | None = None
        """Called once when the connection is gone; a stream handler sets it instead of watching `receive`."""
        self.goodbye: bytes | None = None
        """The last bytes that a stream sends to a client that was too slow."""
        self._answering: Cycle | None = None
        self._offers_websocket = False  # The request that began last does.
        self._default_headers: Headers = server_state.default_headers
        self._phase = _Phase.IDLE
        self._begun = 0  # Requests that began in the segment being parsed.
        self._owe_nothing()
        self._parts = self._segment = self._silent = 0
        self._waiting = b""
        self._turn = None
        self._phase_began = 0.0
        self._received = 0  # Bytes of this request before the segment being parsed.

    # What the application may do with the connection.

    def write_chunk(self, data: bytes) -> bool:
        """Writes a chunk of a streamed answer at once and returns True. If bytes still wait here, or if the
        answer has not begun or is over, it only returns False. Connections may share the same `data`."""
        cycle = self.cycle
        if self.transport.get_write_buffer_size() or not cycle.response_started or cycle.response_complete:
            return False
        self._write_shared(framed(data) if cycle.chunked_encoding else data)
        return True

    def write(self, data: bytes) -> None:
        """Writes a chunk of the streamed answer that is under way, behind bytes that wait."""
        assert self._answering is not None, "it is under way"
        self._write(framed(data) if self._answering.chunked_encoding else data)

    @property
    def offers_websocket(self) -> bool:
        """Whether the request offers to upgrade to a WebSocket, and is the only one under way. Its `Upgrade`
        header is not among the others: all offers are ignored, until a route takes this one."""
        return self._offers_websocket and not (self.pipeline or self._waiting)

    def hand_over(self, head: bytes) -> WebSocketConnection:
        """Answers the current request with the head of a 101, and gives the transport to a WebSocket. Nothing
        else may be under way."""
        cycle = self.cycle
        cycle.response_started = cycle.response_complete = True
        self._unset_keepalive_if_required()
        if not self.transport.is_closing():
            lines = b"".join(b"%b: %b\r\n" % header for header in self._default_headers)
            self.transport.write(head[:-2] + lines + b"\r\n")
        self._owe_no_more()
        self.connections.discard(self)
        connection = WebSocketConnection(
            self.transport, self.loop, self._shared, self.server_state, self.slow_reader_s
        )
        if self.flow.write_paused:  # The client has not taken the answer to an earlier request.
            connection.pause_writing()
        return connection

    # Called by the transport.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport)
        transport.set_write_buffer_limits(high=0)  # All bytes not taken at once are reported and counted.
        self._watch.expect(self, self.loop.time() + self.patience_s)
        if len(self.connections) > self.max_connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owe_no_more()
        if isinstance(exc, TimeoutError):
            CUT_OFF.labels("silent").inc()
        # uvicorn tells only the request that came last.
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)
        self._tell_lost()

    def _start_asgi_task(self, cycle: Cycle, app: Any) -> None:  # type: ignore[override]
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _tell_lost(self) -> None:
        callback, self.on_lost = self.on_lost, None
        if callback is not None:
            callback()

    def on_response_complete(self) -> None:
        if not self.flow.write_paused:
            self._shared.budget.release(self)
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        before = self._phase
        self._begun = 0
        if before is _Phase.DRAIN:
            self._silent += len(data)
            if self._silent > MAX_DRAINED_BYTES:
                self.abort()
            else:
                self._watch.expect(self, self._drained_by())
            return
        if not self._parsed(data):
            return
        if self._begun <= 1:  # Else most of the segment belonged to the requests before this one.
            self._received += self._segment
        # Empty lines between requests count as silence: they do not extend a deadline.
        if before is not _Phase.IDLE or self._phase is not _Phase.IDLE or self._begun:
            self._expect_more()
        if self._waiting:
            self._count()

    def _feed(self, piece: bytes) -> bool:
        rest: bytes | memoryview = piece
        while True:
            try:
                self.parser.feed_data(rest)
            except httptools.HttpParserUpgrade as upgrade:
                rest = memoryview(rest)[upgrade.args[0] :]
                if not self._parsed_again():
                    return False
            except httptools.HttpParserError as error:
                self._refuse(self._why(error, rest))
                return False
            else:
                return True

    # Called by the parser.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun += 1
        self._offers_websocket = False
        self._unset_keepalive_if_required()
        self.scope["extensions"] = self._extensions
        self._default_headers = self.server_state.default_headers
        self._enter(_Phase.HEAD)

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > MAX_TARGET_BYTES:
            raise _RefusedError(limits.target_too_long())

    def on_headers_complete(self) -> None:
        self._check_head()
        if self.parser.should_upgrade():
            return  # The parser ends the message here; `_parsed_again` begins it again.
        version = self._read_head()
        # uvicorn would make cycles of its own class here.
        before = self.cycle
        self.cycle = (Cycle if version == "1.1" else UnframedCycle)(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self._default_headers,
            message_event=Event(),  # type: ignore[arg-type]
            expect_100_continue=self.expect_100_continue,
            keep_alive=version == "1.1" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        if before is None or before.response_complete:
            self._start_asgi_task(self.cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))
        self._enter(_Phase.BODY)
        # Trailers would be added to the headers that the application is already reading.
        self.headers = []

    def _read_head(self) -> str:
        """Completes the scope. Returns the version of HTTP."""
        scope, target = self.scope, httptools.parse_url(self.url)
        version: str = self.parser.get_http_version()
        path: str = target.path.decode("ascii")
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = version
        scope["path"] = self.root_path + (unquote(path) if "%" in path else path)
        scope["raw_path"] = self.root_path.encode("ascii") + target.path
        scope["query_string"] = target.query or b""
        return version

    def on_message_complete(self) -> None:
        if self._phase is _Phase.BODY:
            super().on_message_complete()
            self._phase = _Phase.IDLE

    # Limits.

    def timed_out(self, now: float) -> None:
        """The client sent nothing, or too little, for too long; `now` is loop time in seconds."""
        cycle = self.cycle
        in_body = self._phase is _Phase.BODY
        if (in_body and cycle.waiting_for_100_continue) or (
            self.flow.read_paused and (in_body or self._phase is _Phase.HEAD)
        ):
            # The client waits for the server: for the application to read on, or for earlier answers.
            self._phase_began, self._received = now, 0
            self._watch.expect(self, now + self.patience_s)
        elif self._phase is _Phase.HEAD or (in_body and not cycle.response_complete):
            self._refuse(limits.too_late())
        else:
            self._watch.drop(self)
            self._close()

    def cut_off(self) -> None:
        if self.goodbye is None or self.pipeline or self.transport.is_closing():
            self.abort()  # With a further request queued, `cycle` is not the one that is answered.
            return
        # Behind all waiting bytes: a client that soon reads on is told. Nothing else is written.
        cycle, last = self.cycle, self.goodbye
        cycle.response_complete = cycle.disconnected = True
        self.transport.write(framed(last) + b"0\r\n\r\n" if cycle.chunked_encoding else last)
        self.transport.close()
        self.loop.call_later(GOODBYE_S, self.transport.abort)
        self._tell_lost()
        self.flow.resume_writing()

    def give_way(self) -> None:
        """The bytes of this connection are needed: it has held bytes for the longest time."""
        if self._phase is _Phase.BODY and not self.flow.write_paused:
            self._refuse(
                GaplessError(Code.RATE_LIMITED, "too many unfinished requests at once", retry_after=1)
            )
        else:
            super().give_way()

    def _received_bytes(self) -> int:
        return len(self._waiting) + (self._received if self._phase is _Phase.BODY else 0)

    def _make_room(self) -> None:
        """Handles one connection too many: idle ones are closed, or else the new one is refused."""
        now = self.loop.time()
        if now >= self._shared.check_at:
            idle = [c for c in self.connections if isinstance(c, GaplessHttpProtocol) and c._is_idle()]
            for connection in idle[:MAX_CLOSED_AT_ONCE]:
                connection.transport.close()
            if idle:
                return
            self._shared.check_at = now + self.tick_s
        self._refuse(GaplessError(Code.RATE_LIMITED, "too many connections", retry_after=2))
        if len(self.connections) > self.max_connections + MAX_LINGERING:
            self.abort()

    def _is_idle(self) -> bool:
        done = self._phase is _Phase.IDLE and self.cycle is not None and self.cycle.response_complete
        return done and not self._waiting

    def _close(self) -> None:
        if self._phase is _Phase.DRAIN:
            self.abort()
        else:
            self.transport.close()

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        self._received = self._silent = 0
        self._phase_began = -1.0

    def _check_head(self) -> None:
        headers = self.headers
        if (method := self.parser.get_method()) == b"CONNECT":
            raise _RefusedError(limits.no_proxy())
        if len(headers) > MAX_FIELDS:
            raise _RefusedError(limits.too_many_fields())
        # The exact count is worth its time only when this many bytes, target and body among them, arrived.
        if self._received + self._segment > MAX_FIELDS_BYTES < fields_bytes(headers):
            raise _RefusedError(limits.too_many_fields())
        admission = self.browsers.admit(method, self.url, headers)
        if admission.headers:
            self._default_headers = [*self._default_headers, *admission.headers]
        if admission.refusal is not None:
            raise _RefusedError(admission.refusal)
        version = self.parser.get_http_version()
        if version != "1.1" and (version != "1.0" or any(n == b"transfer-encoding" for n, _ in headers)):
            raise _RefusedError(limits.bad_request("send HTTP/1.1, or HTTP/1.0 without a transfer coding"))

    def _expect_more(self) -> None:
        """After a segment was parsed: sets the deadline of the next one, or none if none is due."""
        if self._phase is _Phase.IDLE:
            self._watch.drop(self)
            if not (self.flow.write_paused or self._queued_bytes):
                self._shared.budget.commit(self)
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
            by = limits.body_due(now, self._phase_began, self._received, self.patience_s)
            self._count()
        if self._phase is not _Phase.DRAIN:
            self._watch.expect(self, by)

    def _excess(self) -> GaplessError | None:
        """The error if an incomplete request is already too long."""
        too_many_fields = len(self.headers) > MAX_FIELDS
        if self._phase is _Phase.HEAD:
            return limits.too_many_fields() if too_many_fields or self._received > MAX_HEAD_BYTES else None
        if too_many_fields or self._silent > MAX_SILENT_BYTES:
            return limits.bad_request("too many bytes of the body are not body")
        if self._received > MAX_REQUEST_BYTES:
            return limits.too_long()
        return None

    def _keep_alive(self) -> None:
        # If a body ends after its answer, no other code starts the timer.
        if self.timeout_keep_alive_task is None and (self.cycle is None or self.cycle.response_complete):
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _parsed_again(self) -> bool:
        """Read a request with an offer again (Java's HttpClient offers HTTP/2 with each request).
        Since the parser takes no body after one, it gets the head again, without the offer."""
        version = self.parser.get_http_version()
        line = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, version.encode())
        # The bytes of a body would be taken for frames.
        is_offer = self._get_upgrade() == b"websocket" and version == "1.1" and not has_body(self.headers)
        fields = b"".join(b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade")
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        try:
            self.parser.feed_data(line + fields + b"\r\n")
        except httptools.HttpParserError as error:
            self._refuse(self._why(error, memoryview(line)))
            return False
        self._offers_websocket = is_offer
        return True

    # Refusals.

    def _why(self, error: httptools.HttpParserError, data: bytes | memoryview) -> GaplessError:
        if isinstance(error.__context__, _RefusedError):
            return error.__context__.error
        if isinstance(error, httptools.HttpParserInvalidMethodError) and _REQUEST_LINE.match(data):
            return GaplessError(Code.METHOD_NOT_ALLOWED, "no such method")
        return limits.bad_request("not a valid HTTP request")

    def _refuse(self, error: GaplessError) -> None:
        """Answers with a problem and closes. It only closes if another answer is due or under way."""
        limits.refusals[error.code] += 1
        self._shared.budget.release(self)
        logger.debug("refused before routing: %s", error.detail, extra={"code": error.code.value})
        if not self._may_answer():
            self._watch.drop(self)
            self.abort()
            return
        if self._phase is _Phase.BODY:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not self.transport.is_closing():
            self.transport.write(self._answer(error))
        self.drain()

    def drain(self) -> None:
        """Nothing more is said. What still comes is read for a moment and dropped."""
        self._unset_keepalive_if_required()
        self._drop_waiting()
        self.flow.let_read(needed=True)
        self._enter(_Phase.DRAIN)
        self._phase_began = self.loop.time()
        self._watch.expect(self, self._drained_by())
        if not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()

    def _drained_by(self) -> float:
        """The loop time at which a client that sends on after its answer is cut off."""
        return min(self.loop.time() + self.linger_s, self._phase_began + self.patience_s)

    def _may_answer(self) -> bool:
        """Whether this answer can be sent without mixing with an answer of the application."""
        cycle = self.cycle
        if self._phase is _Phase.BODY:
            return not cycle.response_started and not self.pipeline
        return cycle is None or cycle.response_complete

    def _answer(self, error: GaplessError) -> bytes:
        status, headers, body = limits.refusal(error, self._default_headers)
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        return STATUS_LINE[status] + lines + b"\r\n" + body
