"""Helpers for tests that run the real thing."""

from __future__ import annotations

import os
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from app import launch
from load.children import die_with_parent
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent


class RunningService:
    """`gapless serve` as a child process on a free port. `url` is set once it is ready."""

    def __init__(
        self,
        environment: dict[str, str],
        arguments: tuple[str, ...] = (),
        *,
        command: tuple[str, ...] = launch.command("app.cli"),
        folder: Path | None = None,
    ) -> None:
        self._lines: list[str] = []
        self.process = subprocess.Popen(
            [*command, "serve", "--port", "0", *arguments],
            env={**os.environ, **environment},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            # A killed run leaves no service behind. Other threads than the first end before their test does.
            preexec_fn=die_with_parent if threading.current_thread() is threading.main_thread() else None,
        )
        self.url = self._await_ready()
        self._drainer = threading.Thread(target=self._drain, daemon=True)
        self._drainer.start()

    def _await_ready(self) -> str:
        assert self.process.stdout is not None
        watch = threading.Timer(3 * PATIENCE_S, self.process.kill)
        watch.start()
        try:
            for line in self.process.stdout:
                self._lines.append(line)
                if line.startswith("Gapless is ready on "):
                    return line.split()[-1]
        finally:
            watch.cancel()
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        raise AssertionError("the service did not start:\n" + "".join(self._lines))

    def _drain(self) -> None:
        assert self.process.stdout is not None
        self._lines.extend(self.process.stdout)

    @property
    def log(self) -> str:
        """What it has printed so far."""
        return "".join(self._lines)

    def kill(self) -> None:
        """kill -9 of the supervisor; its workers end with it."""
        self.process.kill()
        self._end()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        self.process.terminate()
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, 9)
            self._end()

    def _end(self) -> None:
        self.process.wait()
        self._drainer.join(PATIENCE_S)
        assert self.process.stdout is not None
        assert not self._drainer.is_alive(), f"they outlived their service: {writers(self.process.stdout)}"
        self.process.stdout.close()


def writers(pipe: IO[str]) -> list[str]:
    """The commands of the processes that hold the other end of a pipe."""
    name, here = os.readlink(f"/proc/self/fd/{pipe.fileno()}"), str(os.getpid())
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.name != here and any(os.readlink(fd) == name for fd in (process / "fd").iterdir()):
                found.append((process / "cmdline").read_text().replace("\0", " "))
    return found
