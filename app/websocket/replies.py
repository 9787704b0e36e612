"""What the server says to one client: replies to its commands, and pushes.

They are gathered until the event loop comes round, and written as one message with a line for each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

import msgspec

from app.websocket import codes
from app.websocket.codes import ErrorCode, error_code
from app.websocket_protocol import text_frame
from subscriptions.domain.errors import Code, GaplessError

logger = logging.getLogger("gapless.http")

T = TypeVar("T")

MAX_UNANSWERED: Final = 4096
"""Commands of one client that wait for their replies; more are refused."""

_encode: Final = msgspec.json.Encoder().encode
_UNEXPECTED: Final = GaplessError(Code.INTERNAL, "the server failed")


class Writer(Protocol):
    """A connection, as replies use it."""

    def write(self, frames: bytes) -> None: ...


class Replies:
    """The replies and pushes of one client, and the commands that wait for something."""

    __slots__ = ("_connection", "_flushing", "_out", "_tasks", "_unanswered")

    def __init__(self, connection: Writer) -> None:
        self._connection = connection
        self._out: list[bytes] = []
        self._flushing = False
        self._tasks: set[asyncio.Task[None]] | None = None
        self._unanswered = 0

    def __repr__(self) -> str:
        return f"Replies({self._unanswered} unanswered)"

    @property
    def is_full(self) -> bool:
        """Whether no further command may be carried out now."""
        return self._unanswered >= MAX_UNANSWERED

    def say(self, text: bytes) -> None:
        """Say a line: a reply or a push."""
        self._out.append(text)
        if not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Write everything that was said."""
        self._flushing = False
        if self._out:
            text, self._out = b"\n".join(self._out), []
            self._connection.write(text_frame(text))

    def answer(self, id_: int, method: bytes, content: bytes) -> None:
        """Reply to a command; a command without an id wants no reply."""
        if id_:
            self.say(b'{"id":%d,"%b":%b}' % (id_, method, content))

    def refuse(self, id_: int, error: ErrorCode) -> None:
        """Reply with an error."""
        said: dict[str, Any] = {"code": error.code, "message": error.message}
        if error.temporary:
            said["temporary"] = True
        self.say(b'{"id":%d,"error":%b}' % (id_, _encode(said)))

    def await_result(self, id_: int, result: asyncio.Future[T], answer: Callable[[T], None]) -> None:
        """Call `answer` with the result once it is there; refuse the command if that is an error."""
        self._unanswered += 1

        def done(result: asyncio.Future[T]) -> None:
            self._unanswered -= 1
            if result.cancelled():
                return
            error = result.exception()
            if error is None:
                answer(result.result())
                return
            if not isinstance(error, GaplessError):
                logger.error("a command failed", exc_info=error)
            known = error if isinstance(error, GaplessError) else _UNEXPECTED
            self.refuse(id_, error_code(known))

        result.add_done_callback(done)

    def run(self, id_: int, work: Coroutine[Any, Any, None]) -> None:
        """Carry out a command that has to wait. It gives its own reply, unless it raises."""
        self._unanswered += 1
        task = asyncio.create_task(self._finish(id_, work))
        if self._tasks is None:
            self._tasks = set()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """The client is gone: end the commands that are carried out."""
        for task in self._tasks or ():
            task.cancel()

    async def _finish(self, id_: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except GaplessError as error:
            self.refuse(id_, error_code(error))
        except Exception:
            logger.exception("a command failed")
            self.refuse(id_, codes.INTERNAL)
        finally:
            self._unanswered -= 1
