"""Memory that was needed once and is not any more."""

from __future__ import annotations

import ctypes
from typing import Final

WORTH_BYTES: Final = 16 * 1024 * 1024

_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)


class GivingBack:
    """Has the allocator return its free pages to the system after a peak of what is held for connections, for
    else they stay with the process."""

    def __init__(self) -> None:
        self._peak_bytes = 0

    def look(self, held_bytes: int) -> bool:
        """Called with what is held now; says whether something was given back."""
        self._peak_bytes = max(self._peak_bytes, held_bytes)
        if self._peak_bytes < WORTH_BYTES or held_bytes > self._peak_bytes // 4:
            return False
        self._peak_bytes = held_bytes
        if _trim is not None:  # glibc has it; others give back by themselves.
            _trim(0)
        return True
