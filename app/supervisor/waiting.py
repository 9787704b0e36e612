"""What is waited for at a start is told: at once when the reason is known, else after two seconds."""

import threading
import time
from collections.abc import Callable
from types import TracebackType

SOON_S = 2.0
AGAIN_S = 30.0

Say = Callable[[str], None]


class NotYetError(Exception):
    """Something that a start needs is not there, and may come by itself: it is asked for again. `what` names
    it where it is not what the start waits for anyway."""

    def __init__(self, reason: str, what: str | None = None) -> None:
        super().__init__(reason)
        self.what = what


class Waiting:
    """As a context: says what is waited for if the block lasts for two seconds, and every half a minute from
    then on. The block may be one call that never comes back: a thread of its own does the telling.
    """

    def __init__(self, say: Say, what: str) -> None:
        self._say = say
        self._what = what
        self._first: str | None = None
        self._reason: str | None = None
        self._told = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Waiting":
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def because(self, reason: str, what: str | None = None) -> None:
        """Why it, or `what` before it, is still waited for; told at once if it is a new reason."""
        self._first = what
        if reason != self._reason:
            self._reason = reason
            self._tell()

    def arrived(self) -> None:
        """It is over, and well: say so to whoever was told that it is waited for."""
        self._over.set()
        if self._told:
            self._say(f"{self._what} is there after {time.monotonic() - self._began:.1f} s")

    def _watch(self) -> None:
        delay_s = SOON_S
        while not self._over.wait(delay_s):
            if self._reason is None or delay_s == AGAIN_S:
                self._tell()
            delay_s = AGAIN_S

    def _tell(self) -> None:
        self._told = True
        reason = self._reason or "no answer yet"
        self._say(f"waiting for {self._first or self._what}: {reason}")
