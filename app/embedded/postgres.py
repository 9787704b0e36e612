"""The embedded Postgres: a child of this process over `<home>/postgres`, reached by a Unix socket only."""

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

START_TIMEOUT_S = 600.0  # recovery after a crash may have a lot of log to replay
_STOP = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0))  # fast, then immediate; both lose nothing committed
_STATUS_LINE = 7
WRITABLE = ("ready",)
ANSWERING = ("ready", "standby")
"""A server that follows another one, or recovers from a backup, says that it is a standby."""
_SOCKET = ".s.PGSQL.5432"
_SOCKET_FILES = (f"{_SOCKET}.lock", _SOCKET)


class EmbeddedPostgres:
    """Durable: fsync and synchronous commit are on. `start` and `stop` may be called again and again.

    Only one process may start it on a home at a time (`HomeLock`). `owner_url` is for migrations,
    `service_url` for the service, `admin_url` for what only a superuser may do.
    """

    def __init__(self, home_folder: Path, interrupted: Callable[[], bool] = lambda: False) -> None:
        """`interrupted` is asked during a start; once true, the start gives up with `EmbeddedError`."""
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
        """Whether a server listens on the socket, this object's or another process'."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            return connection.connect_ex(str(self.sockets / _SOCKET)) == 0

    def start(self) -> None:
        """Start the server, over a new data folder if there is none, and return once it answers.

        What an earlier run left running on the data is ended first, so two servers never share it. Raises
        `PassingError` for what may pass, such as a full disk.
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
        """End the server: it closes its connections, writes a checkpoint and leaves."""
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
        """Start a server over a complete folder, with settings for this time only, and wait until it says
        that it is as wanted. Nothing of an earlier run may be left (`end_leftovers`)."""
        folders.make_private(self.sockets, {os.geteuid(), identity.uid}, identity.owner())
        cluster.configure(self.home)
        promises = cluster.promises(self.home, self.sockets, self.cluster_name)
        program = [str(binaries.program("postgres")), "-D", str(data), *promises, *settings]
        process = processes.spawn(program, identity, signal.SIGINT, self.log)
        self._process = process
        if not processes.wait_until(lambda: self._settled(data, process, until), START_TIMEOUT_S):
            processes.end(process, _STOP)
            raise PassingError(f"Postgres was not ready after {START_TIMEOUT_S:.0f} s, see {self.log.path}")
        if process.poll() is not None:
            raise EmbeddedError(f"Postgres ended with {process.returncode} as it started:\n{self.log.tail()}")
        if self._interrupted():
            processes.end(process, _STOP)
            raise EmbeddedError("interrupted while Postgres was starting")

    def _settled(self, data: Path, process: processes.Process, until: Collection[str]) -> bool:
        return _status(data, process) in until or process.poll() is not None or self._interrupted()

    def end_leftovers(self) -> None:
        """Leave the data folder without a process on it and without a stale lock file.

        Postgres itself trusts a lock file whose process id is taken by anyone, even by a zombie; it writes
        one for its data and one for its socket. Here they go only after the process table shows that neither
        a server nor one of its children is left.
        """
        processes.end_leftovers(self._servers, _STOP)
        # Without their server the children leave by themselves; SIGINT would mean something else to them.
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
        # A child just forked still bears its parent's command line.
        return [pid for pid, parent in found.items() if parent not in found]

    def _children(self) -> list[int]:
        mark = f"postgres: {self.cluster_name}:"
        return [process.pid for process in processes.running() if process.command.startswith(mark)]

    def _refuse_to_overwrite(self) -> None:
        if self.data.exists():
            raise EmbeddedError(f"{self.data} is there but holds no Postgres data; move it aside")

    def url_of(self, role: str, database: str = cluster.DATABASE) -> str:
        """How to reach it as a role."""
        return f"postgresql://{role}@/{database}?host={quote(str(self.sockets), safe='/')}&port=5432"


def _status(data: Path, process: processes.Process) -> str:
    """What the server's own lock file says of its state, empty before it says anything."""
    lines = (folders.read_plain(data / "postmaster.pid") or "").splitlines()
    its_own = len(lines) > _STATUS_LINE and lines[0] == str(process.pid)
    return lines[_STATUS_LINE].strip() if its_own else ""
