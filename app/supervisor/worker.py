"""A worker process, as the supervisor sees it."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping

from app.embedded.identity import own_identity


class Worker:
    """A worker process. `ready` becomes true once it reports that through its pipe, and stays true."""

    def __init__(self, argv: tuple[str, ...], environment: Mapping[str, str], listen_fd: int) -> None:
        """Starts it. It ends with the calling thread, which must be the main one. Raises OSError."""
        self._pipe, theirs = os.pipe()
        os.set_blocking(self._pipe, False)
        facts = {"GAPLESS_LISTEN_FD": str(listen_fd), "GAPLESS_READY_FD": str(theirs)}
        try:
            # Its own session: Ctrl-C in the terminal reaches only the supervisor, which stops all in order.
            self.process = subprocess.Popen(
                own_identity().command(list(argv), death_signal=signal.SIGKILL),
                env={**os.environ, **environment, **facts},
                stdin=subprocess.DEVNULL,
                pass_fds=(listen_fd, theirs),
                start_new_session=True,
            )
        except OSError:
            self._close()
            raise
        finally:
            os.close(theirs)
        self.started_at = time.monotonic()
        self.ready = False
        self.kill_at = float("inf")

    def __repr__(self) -> str:
        state = "gone" if self.gone() else "ready" if self.ready else "starting"
        return f"<Worker {self.process.pid} {state}>"

    def listening_for(self) -> list[int]:
        """The descriptor of the readiness pipe while it is open, as a list of 0 or 1."""
        return [] if self._pipe < 0 else [self._pipe]

    def check(self) -> None:
        """Reads the pipe without waiting. A byte means ready; an end without a byte does not."""
        if self._pipe < 0:
            return
        try:
            self.ready = bool(os.read(self._pipe, 1))
        except BlockingIOError:
            return
        self._close()

    def gone(self) -> bool:
        if self.process.poll() is None:
            return False
        self._close()
        return True

    def age_s(self) -> float:
        return time.monotonic() - self.started_at

    def retire(self, patience_s: float) -> None:
        """Asks it to stop; `press` kills it after `patience_s` seconds."""
        self.kill_at = min(self.kill_at, time.monotonic() + patience_s)
        self.process.terminate()

    def press(self) -> None:
        if time.monotonic() >= self.kill_at:
            self.process.kill()

    def end_of(self) -> str:
        """How it ended: its signal or exit code, as text."""
        code = self.process.returncode
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def _close(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
