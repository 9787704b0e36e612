"""What the server says to one client: replies to its commands, and pushes.

They are gathered until the event loop comes round, and written as one message with a line for each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

import msgspec

from app.faces.websocket.codes import OVERTAKEN, ErrorCode, error_code
from app.faces.websocket.framing import Framing
from subscriptions.domain.errors import GaplessError, internal

logger = logging.getLogger("gapless.http")

T = TypeVar("T")

MAX_UNANSWERED: Final = 4096
"""Commands of one client that wait for their replies; more are refused."""

_encode: Final = msgspec.json.Encoder().encode


class Opening:
    """The one reply to a command that opens something in a task of its own. If the task ends before it
    replied, the client is told that something overtook it."""

    __slots__ = ("_id", "_method", "_replies")

    def __init__(self, replies: Replies, id_: int, method: bytes) -> None:
        self._replies: Replies | None = replies
        self._id = id_
        self._method = method

    @property
    def replied(self) -> bool:
        return self._replies is None

    def answer(self, content: bytes) -> None:
        if self._replies is not None:
            self._replies.answer(self._id, self._method, content)
        self._replies = None

    def refuse(self, error: ErrorCode) -> None:
        if self._replies is not None:
            self._replies.refuse(self._id, error)
        self._replies = None

    def done(self, _: asyncio.Task[None]) -> None:
        """The task has ended."""
        self.refuse(OVERTAKEN)


class Writer(Protocol):
    """A connection, as replies use it."""

    def write(self, frames: bytes) -> None: ...


class Replies:
    """The replies and pushes of one client, and the commands that wait for something."""

    __slots__ = ("_connection", "_flushing", "_framing", "_out", "_tasks", "_unanswered", "on_answered")

    def __init__(self, connection: Writer, framing: Framing) -> None:
        self.on_answered: Callable[[], None] | None = None
        """Called once no command waits for its reply any more."""
        self._connection = connection
        self._framing = framing
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

    @property
    def is_empty(self) -> bool:
        """Whether no command waits for its reply."""
        return not self._unanswered

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
            self._connection.write(self._framing.frame(text))

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
            if not result.cancelled():
                error = result.exception()
                if error is None:
                    answer(result.result())
                elif isinstance(error, GaplessError):
                    self.refuse(id_, error_code(error))
                else:
                    logger.error("a command failed", exc_info=error)
                    self.refuse(id_, error_code(internal()))
            self._answered()

        result.add_done_callback(done)

    def run(self, id_: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Carry out a command that has to wait. It gives its own reply, unless it raises. If the client is
        gone before it begins, `work` is never called."""
        self._unanswered += 1
        task = asyncio.create_task(self._finish(id_, work))
        if self._tasks is None:
            self._tasks = set()
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def stop(self) -> None:
        """The client is gone: end the commands that are carried out."""
        for task in self._tasks or ():
            task.cancel()

    async def _finish(self, id_: int, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except GaplessError as error:
            self.refuse(id_, error_code(error))
        except Exception:
            logger.exception("a command failed")
            self.refuse(id_, error_code(internal()))

    def _finished(self, task: asyncio.Task[None]) -> None:
        assert self._tasks is not None, "it was among them"
        self._tasks.discard(task)
        self._answered()

    def _answered(self) -> None:
        self._unanswered -= 1
        if not self._unanswered and self.on_answered is not None:
            self.on_answered()
