"""The embedded Redis (Valkey): a child process that keeps nothing on disk, reached by a Unix socket only."""

import os
import signal
import socket
from pathlib import Path
from urllib.parse import quote

from app.embedded import folders, home, processes
from app.embedded.binaries import find_redis
from app.embedded.errors import EmbeddedError, PassingError, in_words
from app.embedded.identity import own_identity
from app.embedded.logs import LogFile

START_TIMEOUT_S = 10.0
_STOP = ((signal.SIGTERM, 3.0),)


class EmbeddedRedis:
    """Keeps hints and hot copies in bounded memory. When it is full, the least recently used go first."""

    def __init__(self, home_folder: Path, memory_mb: int = 256) -> None:
        self.home = home.prepare(home_folder)
        self.folder = self.home / "redis"
        self.socket = home.socket_folder(self.home) / "redis.sock"
        self.log = LogFile(self.home / "log" / "redis.log")
        self.memory_mb = memory_mb
        self._process: processes.Process | None = None

    def __repr__(self) -> str:
        state = f"process {self._process.pid}" if self._process and self.alive() else "stopped"
        return f"<EmbeddedRedis {self.socket} {state}>"

    @property
    def url(self) -> str:
        return f"unix://{quote(str(self.socket), safe='/')}?db=0"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server, empty, and return once it answers. A server left by a killed run is ended
        first."""
        if self.alive():
            return
        with in_words(self.home):
            self._start()

    def _start(self) -> None:
        processes.end_leftovers(self._leftovers, _STOP)
        folders.make_private(self.folder, {os.geteuid()})
        # Postgres' socket is in the same folder, so the folder may belong to the user who owns the data.
        folders.make_private(self.socket.parent, home.owners(self.home))
        self.socket.unlink(missing_ok=True)
        program = [str(find_redis()), *self._settings()]
        process = processes.spawn(program, own_identity(), signal.SIGTERM, self.log)
        self._process = process
        if not processes.wait_until(lambda: self._answers() or process.poll() is not None, START_TIMEOUT_S):
            processes.end(process, _STOP)
            raise PassingError(f"Redis did not answer after {START_TIMEOUT_S:.0f} s, see {self.log.path}")
        if process.poll() is not None:
            raise EmbeddedError(f"Redis ended with {process.returncode} at its start:\n{self.log.tail()}")

    def stop(self) -> None:
        if self._process is not None:
            processes.end(self._process, _STOP)

    def _settings(self) -> list[str]:
        settings = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder),
            "save": "",
            "appendonly": "no",
            "maxmemory": f"{self.memory_mb}mb",
            "maxmemory-policy": "allkeys-lru",
            "daemonize": "no",
        }
        return [word for name, value in settings.items() for word in (f"--{name}", value)]

    def _answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(1.0)
                connection.connect(str(self.socket))
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def _leftovers(self) -> list[int]:
        """The ids of servers on this socket. Its path is in their arguments, and in the title they set
        later."""
        marks = (f"unixsocket:{self.socket}", f"--unixsocket {self.socket} ")
        return [
            process.pid for process in processes.running() if any(mark in process.command for mark in marks)
        ]
