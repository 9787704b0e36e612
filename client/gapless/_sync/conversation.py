# Written by client/unasync.py from _async/conversation.py: change that file, and run the script.
"""A channel as it is after all changes, kept up to date, on the calling thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Literal, Protocol, Self

from gapless._errors import CursorExpired, NotFound
from gapless._fold import Fold
from gapless._lost import Gap
from gapless._models import Message, Original, Page
from gapless._sync.stream import Stream

PAGE_SIZE = 1000


class Reads(Protocol):
    """What it needs of a client."""

    def history(
        self, channel: str, *, view: Literal["latest"], order: Literal["asc", "desc"], page_size: int
    ) -> Iterator[Page]: ...

    def subscribe(
        self, channel: str, /, *, start: int | Literal["earliest"], on_gap: Literal["yield"]
    ) -> Stream[Message | Gap]: ...

    def get_message(self, channel: str, message_id: int, *, view: Literal["latest"]) -> Message: ...


class Conversation:
    """The messages of a channel as they are after all changes, and what changes from now on.

    Iterating yields each original that is new or changed, as it is then. Entering it reads what is there.
    After a gap all is read again, and told again.
    """

    def __init__(self, client: Reads, channel: str, newest: int | None) -> None:
        self._client = client
        self._channel = channel
        self._newest = newest
        self._fold = Fold()
        self._stream: Stream[Message | Gap] | None = None
        self._waiting: deque[int] = deque()
        """Ids of what is to be told."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._channel}, {len(self._fold)} messages>"

    @property
    def messages(self) -> list[Original]:
        """The messages as they are now, oldest first; deleted ones have `deleted` and no data."""
        return self._fold.messages

    def get(self, message_id: int) -> Original | None:
        """One of them, or None."""
        return self._fold.get(message_id)

    def __enter__(self) -> Self:
        if self._stream is None:
            self._open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends it. `messages` stays."""
        if self._stream is not None:
            self._stream.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Original:
        while True:
            if self._stream is None:
                self._open()
                self._waiting.extend(original.id for original in self._fold.messages)
            self._read_stale()
            while self._waiting:
                original = self._fold.get(self._waiting.popleft())
                if original is not None:
                    return original
            assert self._stream is not None, "it was opened"
            told = self._stream.__next__()
            if isinstance(told, Gap):
                self._begin_again()
            else:
                self._waiting.extend(original.id for original in self._fold.apply(told))

    def run(self, on_change: Callable[[Original], object]) -> None:
        """Calls this with each original that is new or changed, until it is closed."""
        with self:
            for original in self:
                on_change(original)

    def _read_stale(self) -> None:
        """Read messages whose earlier annotators are not known here: the service counts. What fails is tried
        again by the next iteration, which has told nothing of them yet."""
        for message_id in sorted(self._fold.stale):
            try:
                shown = self._client.get_message(self._channel, message_id, view="latest")
            except NotFound:
                self._fold.forget(message_id)
            else:
                assert isinstance(shown, Original)
                self._fold.load([shown])

    def _open(self) -> None:
        cursor = self._load()
        start: int | Literal["earliest"] = "earliest" if cursor is None else cursor
        self._stream = self._client.subscribe(self._channel, start=start, on_gap="yield")
        self._stream.__enter__()

    def _begin_again(self) -> None:
        """Messages are gone that were not read: the next iteration reads all again, and tells it."""
        stream, self._stream = self._stream, None
        self._fold = Fold()
        self._waiting.clear()
        if stream is not None:
            stream.close()

    def _load(self) -> int | None:
        """Fill the fold; the id to subscribe after, or None: from the oldest message on."""
        while True:
            try:
                return self._load_once()
            except CursorExpired:
                # Retention overtook the pages.
                self._fold = Fold()
            except NotFound:
                return None

    def _load_once(self) -> int | None:
        head: int | None = None
        order: Literal["asc", "desc"] = "asc" if self._newest is None else "desc"
        size = PAGE_SIZE if self._newest is None else self._newest
        for page in self._client.history(self._channel, view="latest", order=order, page_size=size):
            # What changes while further pages are read comes after the head of the first one.
            head = page.head if head is None else head
            self._fold.load([one for one in page.messages if isinstance(one, Original)])
            if self._newest is not None:
                break
        return head
