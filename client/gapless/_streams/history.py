"""Streams a channel's history."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gapless._call import Request
from gapless._calls.history import HistoryQuery
from gapless._config import Config
from gapless._errors import HistoryLost, ProtocolError
from gapless._lost import Gap
from gapless._models import Message, gap_from, message_from
from gapless._retry import Attempts, Break, Ended, NoReply, Reply
from gapless._streams.sse import MAX_EVENT_BYTES, LineSplitter
from gapless._streams.stream import Streamed, expect_type, log, parse_json


class HistoryStream(Streamed[Message]):
    """A channel's history as newline-delimited JSON, in constant memory; after a break it resumes there."""

    def __init__(
        self, query: HistoryQuery, limit: int | None, config: Config, chance: Callable[[], float]
    ) -> None:
        self.cursor = None
        self._query = query
        self._remaining = limit
        self._config = config
        self._chance = chance
        self._attempts: Attempts | None = None
        self._lines = LineSplitter(MAX_EVENT_BYTES)
        self._waiting: deque[Message] = deque()
        self._opened = False
        self._told = ""
        self._gap: Gap | None = None
        self._changed = False

    def request(self) -> Request:
        headers = {"Accept": "application/x-ndjson", "Accept-Encoding": "identity"}
        return Request("GET", self._query.where, self._query.params(self._remaining), headers)

    @property
    def started(self) -> bool:
        return self._opened

    def opened(self, head: Reply, now: float) -> None:
        expect_type(head, "application/x-ndjson")
        ids = head.headers.get("gapless-history-changed")
        self._changed = bool(ids)
        if ids and ids != self._told:
            self._told = ids
            self._gap = gap_from({"reason": "history_changed", "ids": ids.split("-")})
        self._lines = LineSplitter(MAX_EVENT_BYTES)
        self._opened = True

    def feed(self, chunk: bytes) -> None:
        for line in self._lines.feed(chunk):
            if line.strip():
                self._waiting.append(message_from(parse_json(line)))

    def take(self) -> Message | None:
        gap, self._gap = self._gap, None
        if gap is not None:
            raise HistoryLost.of(gap)
        while self._waiting:
            message = self._waiting.popleft()
            # After a change of the history, what follows may lie below the id that was asked for.
            if self._query.is_past(message.id) and not self._changed:
                continue
            self._changed = False
            self._query = self._query.past(message.id)
            self.cursor = message.id
            self._attempts = None
            if self._remaining is not None:
                self._remaining -= 1
            return message
        return None

    def lost(self, cause: Break, now: float) -> float | None:
        if self._remaining == 0:
            return None
        outcome = self._ended() if isinstance(cause, Ended) else cause
        if outcome is None:
            return None
        if self._attempts is None:
            config = self._config
            self._attempts = Attempts(
                config.retry,
                repeatable=True,
                now=now,
                chance=self._chance,
                renews_token=config.renews_token,
            )
        verdict = self._attempts.judge(outcome, now)
        if isinstance(verdict, Reply):
            raise ProtocolError(f"unexpected status {verdict.status}", status=verdict.status)
        log.info("history of %s lost, resuming from %s in %.2f s", self._query.channel, self.cursor, verdict)
        return verdict

    def _ended(self) -> NoReply | None:
        """Reads a last line without a line end. If it is not whole, the connection was cut unnoticed."""
        try:
            self.feed(b"\n")
        except ProtocolError as error:
            return NoReply("the answer ended within a line", cause=error)
        return None
