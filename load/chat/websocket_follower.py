"""A reader that checks, as `Follower`, but over WebSocket: it goes on after the offset it saw last."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from load.chat.follower import LATEST, Follower
from load.history import Gap
from load.patterns import is_pattern
from load.websocket import Stream, handshake

_ID = re.compile(rb'\{"id":(\d+),')
_PUB = b'"pub":'
_OFFSET = b',"offset":'


class WebSocketFollower(Follower):
    """One reader. Of one channel it holds a seq, of several an id; both with the epoch that it was told."""

    _offset = 0
    _epoch = ""

    def _make_stream(self) -> Stream:
        if self._connected_before:
            cursor = self.cursor
            self._crowd.history.resume(cursor, cursor.ids[-1] if cursor.ids else cursor.start)
        request = handshake(self._crowd.target, "/v1/ws")
        return Stream(request, self._open, self._read, self._closed.set)

    def _open(self, status: int, head: bytes) -> None:
        self._opened(200 if status == 101 else status, head)
        if status == 101 and isinstance(self._stream, Stream):
            self._stream.send(b'{"id":1,"connect":{}}\n' + msgspec.json.encode(self._subscribe()))

    def _subscribe(self) -> dict[str, Any]:
        """The command that goes on where this reader is."""
        cursor = self.cursor
        asked: dict[str, Any] = {"channel": cursor.patterns[0]}
        if len(cursor.patterns) > 1 or is_pattern(cursor.patterns[0]):
            asked = {"channel": "mine", "selection": {"channel": list(cursor.patterns)}}
        if cursor.ids or cursor.start != LATEST:
            asked |= {"recover": True, "offset": self._offset, "epoch": self._epoch}
        return {"id": 2, "subscribe": asked}

    def _read(self, lines: list[bytes]) -> None:
        """Note the publications of one read."""
        crowd, cursor = self._crowd, self.cursor
        for line in lines:
            at, end = line.find(_PUB), line.rfind(_OFFSET)
            if at < 0 or end < 0 or not line.startswith(b'{"push"'):
                self._said(line)
                continue
            text = line[at + len(_PUB) : end] + b"}"
            found = _ID.match(text)
            assert found is not None, "a message begins with its id"
            message_id = int(found[1])
            if cursor.start == LATEST:
                cursor.start = message_id - 1
            self._offset = int(line[end + len(_OFFSET) : -3])
            crowd.take(cursor, message_id, text)

    def _said(self, line: bytes) -> None:
        said: dict[str, Any] = msgspec.json.decode(line)
        push = said.get("push", {})
        if not said and isinstance(self._stream, Stream):
            self._stream.send(b"{}")
        elif "subscribe" in said:
            self._epoch = said["subscribe"]["epoch"]
            if not self.cursor.ids:
                self._offset = said["subscribe"]["offset"]
            if said["subscribe"].get("recovered") is False:
                self._crowd.seen["not recovered"] += 1
        elif "gap" in push:
            gap = push["gap"]
            self._crowd.history.gap(self.cursor, Gap(gap["channel"], gap["first_seq"], gap["missed"]))
        elif "ready" in push:
            if self.cursor.start == LATEST:
                self.cursor.start = push["ready"]["cursor"]
            self.live.set()
        elif "unsubscribe" in push or "error" in said:
            self._crowd.seen[f"told {push.get('unsubscribe') or said['error']}"] += 1
            self._closed.set()
