"""A live subscription over an event stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gapless._call import Request
from gapless._config import Config
from gapless._effects import Sources
from gapless._options import known
from gapless._retry import Reply
from gapless._streams.interest import Interest, SubscribeOptions
from gapless._streams.reading import Item, OnGap, Reading
from gapless._streams.sse import SSEParser
from gapless._streams.stream import Streamed, expect_type, parse_json

_KINDS = frozenset({"message", "ready", "gap", "goodbye"})


class Reader(Reading, Streamed[Item]):
    """Reads the events of one response after another. It holds at most the items of one network read."""

    def __init__(self, interest: Interest, *, chance: Callable[[], float], **options: Any) -> None:
        super().__init__(interest, chance=chance, **options)
        self._parser = SSEParser()
        asked = {"ephemeral": self._ephemeral, "marker": interest.markers}
        self._kinds = _KINDS.union(kind for kind, is_asked in asked.items() if is_asked)

    @property
    def retry_ms(self) -> int | None:
        return self._parser.retry_ms

    def request(self) -> Request:
        return self._interest.request(self.cursor)

    def opened(self, head: Reply, now: float) -> None:
        expect_type(head, "text/event-stream")
        # A half-received event of the connection before must not be joined with this one's first bytes.
        self._parser = SSEParser()
        self._began(now)

    def feed(self, chunk: bytes) -> None:
        for event in self._parser.feed(chunk):
            if self._goodbye is None and event.type in self._kinds:
                self._accept(event.type, parse_json(event.data))


def reader(
    channels: tuple[str, ...],
    on_gap: OnGap,
    ephemeral: bool,
    markers: bool,
    config: Config,
    effects: Sources,
    give_up_after: float | None = None,
    **options: Any,
) -> Reader:
    """A reader for the arguments of `subscribe`. Raises `ValueError` if they do not fit."""
    return Reader(
        Interest(
            channels,
            markers=markers,
            **known("subscribe", SubscribeOptions, options, "on_gap", "ephemeral", "markers"),
        ),
        on_gap=on_gap,
        ephemeral=ephemeral,
        give_up_after=give_up_after,
        renews_token=config.renews_token,
        chance=effects.chance,
    )
