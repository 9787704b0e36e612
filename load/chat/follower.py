"""A reader that checks: it follows channels over SSE, cuts its connection at random times, and reconnects."""

from __future__ import annotations

import asyncio
import contextlib
import random
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import msgspec

from load.history import Cursor, Gap, History, Odd
from load.sse import Event, Stream
from load.waiting import SLOWNESS
from load.websocket import Stream as WebSocketStream
from load.wire import Target

LATEST = -1
"""The start of a cursor that begins where the log ends when it first connects."""

CONNECT_TIMEOUT = 10.0 * SLOWNESS


@dataclass(slots=True)
class Crowd:
    """The state that all readers of a run share. `texts` has the hash of each message's first text.

    A delivery with the same text is not parsed, so that one core is enough. `mean_life` is the mean time in
    seconds after which a reader cuts its connection; 0: never.
    """

    history: History
    target: Target
    mean_life: float = 0.0
    texts: dict[int, int] = field(default_factory=dict)
    ids: array[int] = field(default_factory=lambda: array("q"))
    """The messages that were seen, in the order they were first seen."""
    seen: Counter[str] = field(default_factory=Counter)
    """How often connections opened, ended, were refused, said goodbye, and so on."""

    def take(self, cursor: Cursor, message_id: int, text: bytes) -> None:
        """Note one delivery; `text` is the message as JSON."""
        mark = hash(text)
        if self.texts.get(message_id) == mark:
            cursor.ids.append(message_id)
            return
        message = msgspec.json.decode(text)
        position = len(cursor.ids)
        self.history.receive(cursor, message_id, message)
        if message["id"] != message_id:
            cursor.odd.append(Odd(position, message["id"], message["channel"], message["seq"], 0))
        elif not (cursor.odd and cursor.odd[-1].position == position):
            if message_id not in self.texts:
                self.ids.append(message_id)
            self.texts.setdefault(message_id, mark)


class Follower:
    """One reader with one cursor over many connections. `run` lasts until `stop`.

    `live` is set after `ready`, until the connection ends.
    """

    def __init__(self, crowd: Crowd, cursor: Cursor, chance: random.Random, delay: float = 0.0) -> None:
        self.cursor = cursor
        self.live = asyncio.Event()
        self._crowd = crowd
        self._chance = chance
        self._delay = delay
        self._stream: Stream | WebSocketStream | None = None
        self._closed = asyncio.Event()
        self.stopping = False
        self._connected_before = False

    def __repr__(self) -> str:
        state = "connected" if self._stream is not None and self._stream.transport else "away"
        return f"<Follower {self.cursor.name} {state} after {len(self.cursor.ids)}>"

    def stop(self) -> None:
        """End for good."""
        self.stopping = True
        self._closed.set()

    async def run(self) -> None:
        """Follow until stopped, `delay` seconds from now on."""
        await asyncio.sleep(self._delay)
        while not self.stopping:
            self._closed.clear()
            if await self._connect():
                await self._until_cut()
            self.live.clear()
            await asyncio.sleep(self._chance.uniform(0.02, 0.4))

    async def _connect(self) -> bool:
        stream = self._stream = self._make_stream()
        loop = asyncio.get_running_loop()
        target = self._crowd.target
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await loop.create_connection(lambda: stream, target.host, target.port)
        except (OSError, TimeoutError):
            self._crowd.seen["unreachable"] += 1
            return False
        return True

    def _make_stream(self) -> Stream | WebSocketStream:
        return Stream(self._request(), self._opened, self._take, self._closed.set)

    async def _until_cut(self) -> None:
        """Return when the server ends the connection, or when its random life is over."""
        assert self._stream is not None
        mean = self._crowd.mean_life
        life = self._chance.expovariate(1 / mean) if mean else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(life):
                await self._closed.wait()
        self._crowd.seen["ended by the server" if self._closed.is_set() else "cut by the reader"] += 1
        self._stream.abort()

    def _request(self) -> bytes:
        """The request for messages after the last id seen, or after the start."""
        cursor = self.cursor
        query: list[tuple[str, str]] = [("channel", pattern) for pattern in cursor.patterns]
        headers = {"Accept": "text/event-stream"}
        if self._connected_before:
            self._crowd.history.resume(cursor, cursor.ids[-1] if cursor.ids else cursor.start)
        if cursor.ids:
            headers["Last-Event-ID"] = str(cursor.ids[-1])
        elif cursor.start != LATEST:
            query.append(("after", str(cursor.start)))
        path = "/v1/subscribe?" + urlencode(query)
        return self._crowd.target.request("GET", path, headers=headers)

    def _opened(self, status: int, head: bytes) -> None:
        if status != 200:
            self._crowd.seen[f"answered {status}"] += 1
            if self._stream is not None:
                self._stream.abort()
            return
        self._crowd.seen["opened"] += 1
        self._connected_before = True

    def _take(self, events: list[Event]) -> None:
        """Note the events of one read. The loop runs for every delivery of a run, so its common case is
        short."""
        crowd, cursor = self._crowd, self.cursor
        first_text, note = crowd.texts.get, cursor.ids.append
        if cursor.start == LATEST and events[0][0] is not None and not events[0][2]:
            # A message before `ready` is history: the reader's start is just before it.
            cursor.start = int(events[0][0]) - 1
        for event_id, text, name in events:
            if name or event_id is None:
                self._other(name, text)
                continue
            message_id = int(event_id)
            if first_text(message_id) == hash(text):
                note(message_id)
                continue
            crowd.take(cursor, message_id, text)

    def _other(self, name: bytes, text: bytes) -> None:
        said: dict[str, Any] = msgspec.json.decode(text) if text[:1] == b"{" else {}
        if name == b"gap":
            gap = Gap(said["channel"], said["first_seq"], said["missed"])
            self._crowd.history.gap(self.cursor, gap)
        elif name == b"ready":
            if self.cursor.start == LATEST:
                self.cursor.start = int(said["cursor"])
            self.live.set()
        what = name.decode(errors="replace") or "message without an id"
        self._crowd.seen[f"{what} {said.get('reason', '')}".strip()] += 1
