"""The embedded Postgres: a child of this process over `<home>/postgres`, reached by a Unix socket only."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from app.embedded import cluster, home, processes
from app.embedded.binaries import PostgresBinaries, find_postgres
from app.embedded.errors import EmbeddedError
from app.embedded.identity import Identity, choose
from app.embedded.logs import LogFile

START_TIMEOUT_S = 600.0  # recovery after a crash may have a lot of log to replay
_STOP = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0))  # fast, then immediate; both lose nothing committed
_READY_LINE = 7


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
        return self._url(cluster.OWNER)

    @property
    def service_url(self) -> str:
        return self._url(cluster.SERVICE)

    @property
    def admin_url(self) -> str:
        return self._url("postgres")

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server, over a new data folder if there is none, and return once it answers.

        What an earlier run left running on the data is ended first, so two servers never share it.
        """
        if self.alive():
            return
        self._end_leftovers()
        binaries = find_postgres(cluster.major_of(self.data))
        identity = choose(self.data, binaries.program("initdb"))
        home.make_private(self.sockets, {os.geteuid(), identity.uid})
        identity.own(self.sockets)
        if self.data.exists() and self.data.stat().st_uid != identity.uid:
            identity.own(self.data)
        if cluster.major_of(self.data) is None:
            self._refuse_to_overwrite()
            cluster.create(self.data, binaries, identity)
        cluster.configure(self.data, identity)
        self._launch(binaries, identity)

    def stop(self) -> None:
        """End the server: it closes its connections, writes a checkpoint and leaves."""
        if self._process is not None:
            processes.end(self._process, _STOP)

    def _launch(self, binaries: PostgresBinaries, identity: Identity) -> None:
        settings = cluster.promises(self.sockets, self.cluster_name)
        program = [str(binaries.program("postgres")), "-D", str(self.data), *settings]
        process = processes.spawn(program, identity, signal.SIGINT, self.log)
        self._process = process
        if not processes.wait_until(lambda: self._settled(process), START_TIMEOUT_S):
            processes.end(process, _STOP)
            raise EmbeddedError(f"Postgres was not ready after {START_TIMEOUT_S:.0f} s, see {self.log.path}")
        if process.poll() is not None:
            raise EmbeddedError(f"Postgres ended with {process.returncode} as it started:\n{self.log.tail()}")
        if self._interrupted():
            processes.end(process, _STOP)
            raise EmbeddedError("interrupted while Postgres was starting")

    def _settled(self, process: processes.Process) -> bool:
        return self._ready(process) or process.poll() is not None or self._interrupted()

    def _ready(self, process: processes.Process) -> bool:
        """Whether the server's own lock file says that it takes connections."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return (
            len(lines) > _READY_LINE
            and lines[0] == str(process.pid)
            and lines[_READY_LINE].strip() == "ready"
        )

    def _end_leftovers(self) -> None:
        """Leave the data folder without a process on it and without a stale lock file.

        Postgres itself trusts a lock file whose process id is taken by anyone, even by a zombie. Here it
        goes only after the process table shows that neither a server nor one of its children is left.
        """
        processes.end_leftovers(self._servers, _STOP)
        # Without their server the children leave by themselves; SIGINT would mean something else to them.
        processes.end_leftovers(self._children, ((0, 5.0), (signal.SIGQUIT, 2.0)))
        with suppress(FileNotFoundError):
            (self.data / "postmaster.pid").unlink()

    def _servers(self) -> list[int]:
        mark = f"postgres -D {self.data} -c "
        found = {process.pid: process.parent for process in processes.running() if mark in process.command}
        # A child just forked still bears its parent's command line.
        return [pid for pid, parent in found.items() if parent not in found]

    def _children(self) -> list[int]:
        mark = f"postgres: {self.cluster_name}:"
        return [process.pid for process in processes.running() if process.command.startswith(mark)]

    def _refuse_to_overwrite(self) -> None:
        if self.data.exists():
            raise EmbeddedError(f"{self.data} is there but holds no Postgres data; move it aside")

    def _url(self, role: str) -> str:
        return f"postgresql://{role}@/{cluster.DATABASE}?host={quote(str(self.sockets), safe='/')}&port=5432"
