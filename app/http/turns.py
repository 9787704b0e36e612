"""The bytes of an HTTP connection are parsed in turns of the event loop.

One read of the transport can hold 9,000 requests, or 40,000 chunks of a body. A turn takes about `MAX_PARTS`
chunks. While `MAX_PIPELINED` requests wait for the answers before theirs, no further is parsed: each takes
a hundred times the memory of its bytes. What is not parsed is held and counts; nothing is read meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.http.cycle import Flow
from app.http.writing import WritingHalf

MAX_PIECE_BYTES: Final = 2048
"""The parser cannot be stopped within a piece, so this much may come on top of the other limits."""
MAX_PARTS: Final = 256
"""Pieces of bodies in a turn, chunks among them. A read that is all of one body takes one turn."""
MAX_PIPELINED: Final = 16


class Turns(WritingHalf, HttpToolsProtocol):
    """The reading half of a connection."""

    __slots__ = ("_parts", "_segment", "_silent", "_turn", "_waiting")

    flow: Flow
    _waiting: bytes
    _turn: asyncio.Handle | None
    _parts: int
    _received: int
    """Bytes of this request before this turn."""
    _segment: int
    """Bytes parsed in this turn."""
    _silent: int
    """Bytes since the last byte of body."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_waiting()
        super().connection_lost(exc)

    def on_body(self, body: bytes) -> None:
        self._silent = 0
        self._parts += 1
        super().on_body(body)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._waiting and not self.transport.is_closing():
            self._count()
            self._await_turn()

    def _parsed(self, data: bytes) -> bool:
        """Parses what a turn may have, of bytes that waited and of `data`. False: the connection was upgraded
        or refused."""
        if not self._waiting and len(data) <= MAX_PIECE_BYTES and len(self.pipeline) < MAX_PIPELINED:
            # Almost every read is one piece; the loop below would do the same with it, and slower.
            self._parts = 0
            self._segment = len(data)
            self._silent += len(data)
            return self._feed(data)
        waiting, self._waiting = self._waiting + data, b""
        at = self._parts = self._segment = 0
        while at < len(waiting):
            if self._parts >= MAX_PARTS or len(self.pipeline) >= MAX_PIPELINED:
                self._waiting = waiting[at:]
                self.flow.hold_reading()
                self._await_turn()
                return True
            piece = waiting[at : at + MAX_PIECE_BYTES]
            at += len(piece)
            self._segment += len(piece)
            self._silent += len(piece)
            if not self._feed(piece):
                return False
        if self.flow.holds_reading:
            self.flow.let_read(needed=not self.pipeline and len(self.cycle.body) <= HIGH_WATER_LIMIT)
        return True

    def _feed(self, piece: bytes) -> bool:
        """Passes a piece to the parser. False: as `_parsed`."""
        raise NotImplementedError

    def _await_turn(self) -> None:
        if self._turn is None and len(self.pipeline) < MAX_PIPELINED:
            self._turn = self.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        if not self.transport.is_closing():
            self.data_received(b"")

    def _drop_waiting(self) -> None:
        self._waiting = b""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
