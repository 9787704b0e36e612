"""Ctrl-C and SIGTERM take effect between two messages, never within one."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """Makes both signals raise `KeyboardInterrupt`. Inside its block they raise at the end of the block.

    A second signal does not wait for that end: the reader of stdout may have stopped without closing it.
    """

    def __init__(self) -> None:
        self._held = False
        self._asked = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self._held and not self._asked:
            self._asked = True
            return
        raise KeyboardInterrupt

    def __enter__(self) -> Self:
        self._held = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held = False
        if self._asked and kind is None:
            raise KeyboardInterrupt
