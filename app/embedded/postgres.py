"""The embedded Postgres: a child process with its data in `<home>/postgres`, reached by a Unix socket
only."""

import os
import signal
import socket
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from urllib.parse import quote

from app.embedded import cluster, folders, home, processes
from app.embedded.binaries import PostgresBinaries, find_postgres
from app.embedded.errors import EmbeddedError, PassingError, in_words
from app.embedded.identity import Identity, choose
from app.embedded.logs import LogFile

START_TIMEOUT_S = 600.0  # recovery after a crash may replay much WAL
_STOP = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0))  # fast, then immediate shutdown; both keep all commits
_STATUS_LINE = 7
WRITABLE = ("ready",)
ANSWERING = ("ready", "standby")
"""A server that follows another one or recovers from a backup reports the status `standby`."""
_SOCKET = ".s.PGSQL.5432"
_SOCKET_FILES = (f"{_SOCKET}.lock", _SOCKET)


class EmbeddedPostgres:
    """A durable Postgres: fsync and synchronous commit are on. `start` and `stop` may be called repeatedly.

    Only one process at a time may start it on a home (`HomeLock`). `owner_url` is for migrations,
    `service_url` for the service, `admin_url` for what only a superuser may do.
    """

    def __init__(self, home_folder: Path, interrupted: Callable[[], bool] = lambda: False) -> None:
        """`interrupted` is called during a start. Once it returns true, the start raises `EmbeddedError`."""
        self.home = home.prepare(home_folder)
        self.data = self.home / "postgres"
        self.sockets = home.socket_folder(self.home)
        self.log = LogFile(self.home / "log" / "postgres.log")
        self.cluster_name = f"gapless-{home.digest(self.home)}"
        self._interrupted = interrupted
        self._process: processes.Process | None = None

    def __repr__(self) -> str:
        state = f"process {self._process.pid}" if self._process and self.alive() else "stopped"
        return f"<EmbeddedPostgres {self.data} {state}>"

    @property
    def owner_url(self) -> str:
        return self.url_of(cluster.OWNER)

    @property
    def service_url(self) -> str:
        return self.url_of(cluster.SERVICE)

    @property
    def admin_url(self) -> str:
        return self.url_of("postgres")

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def answers(self) -> bool:
        """Whether a server listens on the socket, started by this object or by another process."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            return connection.connect_ex(str(self.sockets / _SOCKET)) == 0

    def start(self) -> None:
        """Start the server and return once it answers. A missing data folder is made.

        Processes that an earlier run left on the data are ended first, so that two servers never share it.
        Raises `PassingError` for a temporary cause such as a full disk.
        """
        if self.alive():
            return
        with in_words(self.home):
            self._start()

    def _start(self) -> None:
        self.end_leftovers()
        cluster.take_up(self.data)
        binaries = find_postgres(cluster.major_of(self.data))
        identity = choose(self.data, binaries.program("initdb"))
        if self.data.exists() and self.data.stat().st_uid != identity.uid:
            identity.own(self.data)
        if cluster.major_of(self.data) is None:
            self._refuse_to_overwrite()
            cluster.create(self.data, binaries, identity)
        self.launch(self.data, binaries, identity)

    def stop(self) -> None:
        """End the server. It closes its connections and writes a checkpoint first."""
        if self._process is not None:
            processes.end(self._process, _STOP)

    def launch(
        self,
        data: Path,
        binaries: PostgresBinaries,
        identity: Identity,
        settings: Sequence[str] = (),
        until: Collection[str] = ANSWERING,
    ) -> None:
        """Start a server on a complete folder, with `settings` for this run only, and wait until its status
        is in `until`. No process of an earlier run may be left (`end_leftovers`)."""
        folders.make_private(self.sockets, {os.geteuid(), identity.uid}, identity.owner())
        cluster.configure(self.home)
        promises = cluster.promises(self.home, self.sockets, self.cluster_name)
        program = [str(binaries.program("postgres")), "-D", str(data), *promises, *settings]
        process = processes.spawn(program, identity, signal.SIGINT, self.log)
        self._process = process
        if not processes.wait_until(lambda: self._wait_is_over(data, process, until), START_TIMEOUT_S):
            processes.end(process, _STOP)
            raise PassingError(f"Postgres was not ready after {START_TIMEOUT_S:.0f} s, see {self.log.path}")
        if process.poll() is not None:
            raise EmbeddedError(f"Postgres ended with {process.returncode} at its start:\n{self.log.tail()}")
        if self._interrupted():
            processes.end(process, _STOP)
            raise EmbeddedError("interrupted while Postgres was starting")

    def _wait_is_over(self, data: Path, process: processes.Process, until: Collection[str]) -> bool:
        return _status(data, process) in until or process.poll() is not None or self._interrupted()

    def end_leftovers(self) -> None:
        """End all processes on the data folder, then remove stale lock files.

        Postgres takes a lock file for valid if any process has its process id, even a zombie. It writes one
        for its data and one for its socket. They are removed only after the process table shows that no
        server and no child of a server is left.
        """
        processes.end_leftovers(self._servers, _STOP)
        # Children end by themselves without their server. SIGINT means something else to them than to it.
        processes.end_leftovers(self._children, ((0, 5.0), (signal.SIGQUIT, 2.0)))
        processes.await_the_dying("postgres")
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        for name in _SOCKET_FILES:
            (self.sockets / name).unlink(missing_ok=True)

    def _servers(self) -> list[int]:
        marks = (f"postgres -D {self.data} -c ", f"postgres -D {self.data}.partial-")
        found = {
            process.pid: process.parent
            for process in processes.running()
            if any(mark in process.command for mark in marks)
        }
        # A child that was just forked still has its parent's command line.
        return [pid for pid, parent in found.items() if parent not in found]

    def _children(self) -> list[int]:
        mark = f"postgres: {self.cluster_name}:"
        return [process.pid for process in processes.running() if process.command.startswith(mark)]

    def _refuse_to_overwrite(self) -> None:
        if self.data.exists():
            raise EmbeddedError(f"{self.data} exists but holds no Postgres data; move it aside")

    def url_of(self, role: str, database: str = cluster.DATABASE) -> str:
        """The URL of a database of this server for a role."""
        return f"postgresql://{role}@/{database}?host={quote(str(self.sockets), safe='/')}&port=5432"


def _status(data: Path, process: processes.Process) -> str:
    """The server's status in its lock file; empty before the server has written one."""
    lines = (folders.read_plain(data / "postmaster.pid") or "").splitlines()
    its_own = len(lines) > _STATUS_LINE and lines[0] == str(process.pid)
    return lines[_STATUS_LINE].strip() if its_own else ""
