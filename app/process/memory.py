"""Returns memory to the system after a peak."""

from __future__ import annotations

import ctypes
from typing import Final

WORTH_BYTES: Final = 16 * 1024 * 1024

_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)


class GivingBack:
    """Makes the allocator return its free pages to the system after a peak of the bytes held for connections.
    Without it the pages stay with the process."""

    def __init__(self) -> None:
        self._peak_bytes = 0

    def note(self, held_bytes: int) -> bool:
        """Takes the bytes that are held now; returns whether memory was given back."""
        self._peak_bytes = max(self._peak_bytes, held_bytes)
        if self._peak_bytes < WORTH_BYTES or held_bytes > self._peak_bytes // 4:
            return False
        self._peak_bytes = held_bytes
        if _trim is not None:  # glibc has it; other libraries give memory back by themselves.
            _trim(0)
        return True
