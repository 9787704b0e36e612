"""Starts servers, finds those that a killed parent left behind, and ends both reliably."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import kill
from pathlib import Path

from app.embedded.errors import EmbeddedError
from app.embedded.identity import Identity
from app.embedded.logs import LogFile

Process = subprocess.Popen[bytes]
_POLL_S = 0.005
_EXITING = 0x4  # PF_EXITING in the flags of /proc/PID/stat


@dataclass(frozen=True, slots=True)
class Running:
    pid: int
    parent: int
    command: str


def spawn(program: Sequence[str], identity: Identity, death_signal: int, log: LogFile) -> Process:
    """Start a server. On Linux it ends with this process, even if this process is killed.

    The server has its own session, so that Ctrl-C in the terminal reaches only the parent, which ends the
    servers last. Raises `EmbeddedError` outside the main thread: the kernel sends the death signal when the
    thread that started the server ends.
    """
    if threading.current_thread() is not threading.main_thread():
        raise EmbeddedError(
            "embedded servers must be started from the main thread: they end with their thread"
        )
    with log.open() as output:
        return subprocess.Popen(
            identity.command(list(program), death_signal=death_signal),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            start_new_session=True,
        )


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition became true within the timeout. It is checked every 5 ms."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def end(process: Process, steps: Sequence[tuple[int, float]]) -> None:
    """End a child. `steps`: signals and the seconds to wait after each; SIGKILL follows the last."""
    for number, patience_s in steps:
        if process.poll() is not None:
            return
        process.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            return
    process.kill()
    process.wait()


def end_leftovers(find: Callable[[], list[int]], steps: Sequence[tuple[int, float]]) -> None:
    """End the processes that a killed parent left. Signals and waiting times are as in `end`.

    `find` returns the ids of those left; it must name only processes of this installation, and no zombies:
    their memory and files are freed already. Raises `EmbeddedError` if a process survives SIGKILL for 10 s.
    """
    for number, patience_s in (*steps, (signal.SIGKILL, 10.0)):
        if not find():
            return
        for pid in find():
            with suppress(ProcessLookupError):
                kill(pid, number)
        if wait_until(lambda: not find(), patience_s):
            return
    raise EmbeddedError(f"processes {find()} of an earlier run cannot be ended")


def is_running(pid: str) -> bool:
    """Whether a process with this id runs. An exiting process or a zombie does not count."""
    return pid.isdigit() and int(pid) in {process.pid for process in running()}


def await_the_dying(name: str, patience_s: float = 5.0) -> None:
    """Wait until the kernel has ended every exiting process of this name.

    An exiting process has no command line, so its installation is unknown, but it still holds shared memory.
    This waits for those of every installation: they end within moments.
    """
    wait_until(lambda: name not in _dying(), patience_s)


def _dying() -> set[str]:
    """The names of the processes that are exiting and not yet zombies (Linux)."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            name, _, rest = (folder / "stat").read_bytes().partition(b"(")[2].rpartition(b")")
            state, *facts = rest.split()
            if state not in (b"Z", b"X") and int(facts[5]) & _EXITING:
                found.add(name.decode(errors="replace"))
    return found


def running() -> list[Running]:
    """Every process of the machine that has a command line (zombies have none)."""
    if sys.platform.startswith("linux"):
        return _running_on_linux()
    listing = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,command="], capture_output=True, text=True, check=True
    )
    rows = (line.split(None, 2) for line in listing.stdout.splitlines())
    return [Running(int(row[0]), int(row[1]), row[2]) for row in rows if len(row) == 3]


def _running_on_linux() -> list[Running]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                words = (folder / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
                # The field before is the name in parentheses, and a name may contain parentheses.
                parent = (folder / "stat").read_bytes().rpartition(b")")[2].split()[1]
                if words:
                    found.append(Running(int(folder.name), int(parent), words.decode(errors="replace")))
    return found
