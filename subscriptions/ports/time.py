"""The port for time."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Monotonic time in seconds."""

    def __call__(self) -> float: ...
