"""Reports what a start waits for: at once if the reason is known, else after 2 s."""

import threading
import time
from collections.abc import Callable
from types import TracebackType

SOON_S = 2.0
AGAIN_S = 30.0

Say = Callable[[str], None]


class NotYetError(Exception):
    """Something that a start needs is missing for now, so the start tries again. `what` names it if it is not
    what the `Waiting` names anyway."""

    def __init__(self, reason: str, what: str | None = None) -> None:
        super().__init__(reason)
        self.what = what


class Waiting:
    """A context that reports what its block waits for after 2 s, and then every 30 s. It reports from its own
    thread, so the block may be one call that does not return."""

    def __init__(self, say: Say, what: str) -> None:
        self._say = say
        self._what = what
        self._first: str | None = None
        self._reason: str | None = None
        self._has_said = False
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
        """Sets the reason for the wait, and what is missing if not the named thing. A new reason is reported
        at once."""
        self._first = what
        if reason != self._reason:
            self._reason = reason
            self._tell()

    def arrived(self) -> None:
        """Ends the wait, with success. This is reported if the wait was reported."""
        self._over.set()
        if self._has_said:
            self._say(f"{self._what} is there after {time.monotonic() - self._began:.1f} s")

    def _watch(self) -> None:
        delay_s = SOON_S
        while not self._over.wait(delay_s):
            if self._reason is None or delay_s == AGAIN_S:
                self._tell()
            delay_s = AGAIN_S

    def _tell(self) -> None:
        self._has_said = True
        reason = self._reason or "no answer yet"
        self._say(f"waiting for {self._first or self._what}: {reason}")
