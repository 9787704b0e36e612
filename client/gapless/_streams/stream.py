"""A streamed answer for the faces: it takes bytes, gives items, and says how long to wait after a break.

A `Streamed` decides and never waits. `AsyncStream` and `Stream` carry it out and decide nothing.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from gapless._call import Request
from gapless._errors import ProtocolError
from gapless._retry import Break, Reply

T = TypeVar("T")

log = logging.getLogger("gapless")


class Resumable(ABC, Generic[T]):
    """A sequence of items read over one connection after another.

    `take` gives the items. When the connection has ended or could not be made, `lost` gives the seconds to
    wait before the next one, or None when the sequence is complete. Each may raise the `GaplessError` that
    ends it; after an error of `take` it goes on.
    """

    cursor: int | None
    """The id of the last message handed out, or the reader's place as the server gave it; else None."""

    @abstractmethod
    def take(self) -> T | None: ...

    @abstractmethod
    def lost(self, cause: Break, now: float) -> float | None: ...

    @property
    @abstractmethod
    def started(self) -> bool:
        """Whether the stream's start is fixed: no message published from now on can be missed."""

    @property
    def leaving(self) -> bool:
        """Whether the server said that this connection ends, so that nothing more will come."""
        return False


class Streamed(Resumable[T]):
    """A resumable sequence whose connections are streamed answers.

    The order of calls: `request` gives the request to send. `opened` takes the head of a successful answer.
    `feed` takes its bytes, and `take` gives the items. Each may raise the `GaplessError` that ends it.
    """

    @abstractmethod
    def request(self) -> Request: ...

    @abstractmethod
    def opened(self, head: Reply, now: float) -> None: ...

    @abstractmethod
    def feed(self, chunk: bytes) -> None: ...


def expect_type(head: Reply, media_type: str) -> None:
    """Raises `ProtocolError` unless the answer has this type: a login page must not look like silence."""
    actual = head.headers.get("content-type", "").partition(";")[0].strip().lower()
    if actual != media_type:
        raise ProtocolError(f"expected {media_type}, got {actual or 'no type'}", status=head.status)


def parse_json(text: str | bytes) -> Any:
    """The JSON value of one line or event. Raises `ProtocolError`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not JSON: {text[:200]!r}") from error


def member(kind: str, content: Any, name: str, expected: type[Any]) -> Any:
    """A member of an event's JSON object. Raises `ProtocolError` if it is missing or has another type."""
    value = content.get(name) if isinstance(content, dict) else None
    if not isinstance(value, expected):
        raise ProtocolError(f"not a {kind} event: {content!r:.200}")
    return value
