"""Child processes of a load run. None of them outlives the run, even if it crashes."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import random
import re
import resource
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from load.waiting import PATIENCE_S, wait_until

CHECKOUT = Path(__file__).resolve().parent.parent


def python_path(checkout: Path = CHECKOUT) -> str:
    """The PYTHONPATH with which a Python process imports the service, the client and the Spark package."""
    return os.pathsep.join(str(checkout / name) for name in ("", "client", "pipeline"))


_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
_running: list[Child] = []


def raise_file_limit() -> int:
    """Raise the limit of open files of this process and its future children to the hard limit. Returns it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def free_port() -> int:
    """A free TCP port on loopback that was not returned before.

    It is below the ports that the kernel gives to connections, so that a restarted server finds it free.
    """
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        if port in _given:
            continue
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port


_given: set[int] = set()


def parents() -> dict[int, int]:
    """Every process on this machine and its parent; processes that end meanwhile are left out."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := stat_of(int(entry.name))):
            found[int(entry.name)] = int(fields[1])
    return found


def stat_of(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, the state first; empty if the process has ended."""
    try:
        # The name in brackets may contain anything, so the fields begin after the last closing bracket.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def tree(pid: int) -> list[int]:
    """A process and all its descendants, parents before children."""
    children: dict[int, list[int]] = {}
    for child, parent in parents().items():
        children.setdefault(parent, []).append(child)
    found, at = [pid], 0
    while at < len(found):
        found += children.get(found[at], [])
        at += 1
    return found


def command_of(pid: int) -> str:
    """The command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def resident_bytes(pid: int) -> int:
    """The resident memory of a process in bytes; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(pid: int) -> int:
    """The peak resident memory of a process in bytes; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def kill(pids: Sequence[int]) -> None:
    """Send SIGKILL. Processes that have ended already are ignored."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def die_with_parent() -> None:
    """For `preexec_fn`: the child is killed when the thread that starts it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


@dataclass(slots=True)
class Child:
    """One started program; `log` holds what it prints."""

    command: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> Child:
        """Start it with the environment of this process and `env`."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.command,
                cwd=CHECKOUT,
                env={**os.environ, **self.env},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        _running.append(self)
        return self

    @property
    def pid(self) -> int:
        """The process id of the program that was started."""
        assert self.process is not None, "not started"
        return self.process.pid

    def code(self) -> int | None:
        """The exit code; None while it runs."""
        assert self.process is not None, "not started"
        return self.process.poll()

    def stop(self, grace_s: float = 10.0) -> None:
        """Ask it to end. After `grace_s` kill it and all its descendants."""
        assert self.process is not None, "not started"
        if self in _running:
            _running.remove(self)
        if self.process.poll() is not None:
            return  # its id may belong to another process by now
        family = tree(self.pid)
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(grace_s)
        kill(family)
        self.process.wait()

    def tail(self, lines: int = 20) -> str:
        """The end of what it printed."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


def wait_for_port(port: int, child: Child, patience: float = PATIENCE_S) -> None:
    """Return once a program listens on the port. Raises RuntimeError if the child ends first, or after
    `patience` seconds."""

    def listens() -> bool:
        if child.code() is not None:
            raise RuntimeError(f"{child.command[0]} ended with {child.code()}:\n{child.tail()}")
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(listens, f"{child.command[0]} listens on port {port}", patience)


@atexit.register
def _end_all() -> None:
    while _running:
        _running[-1].stop(grace_s=3.0)
