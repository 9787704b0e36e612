"""The service under load, started with `./gapless serve` as users do, and observed from outside."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import asyncpg

from load.children import CHECKOUT, Child, command_of, free_port, kill, tree
from load.drill import temporary_home
from load.waiting import PATIENCE_S, SLOWNESS, until
from load.wire import Connection, Response, Target

LOOK_S = 5.0 * SLOWNESS
"""One look at a service that may be down; whoever looks does so again."""
LAUNCHER = str(CHECKOUT / "gapless")
OWNER = "gapless_owner"
AWAY = (
    OSError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    IndexError,
    ValueError,
)
"""The errors of `connect` and its sessions while the database is down, or its pid file is incomplete."""


@dataclass(slots=True)
class Server:
    """One `./gapless serve` of a checkout, on a fresh home. `settings` are GAPLESS_* variables without the
    prefix."""

    home: Path
    settings: dict[str, str] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    checkout: Path = CHECKOUT
    child: Child | None = None
    credential: str | None = None
    """What its clients send, if any."""
    _announced: int = 0

    @property
    def target(self) -> Target:
        """The address on which it listens."""
        return Target("127.0.0.1", self.port, self.credential)

    @property
    def url(self) -> str:
        """Its base address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        """The environment with which `./gapless` commands use this installation."""
        chosen = {f"GAPLESS_{name.upper()}": value for name, value in self.settings.items()}
        return {
            "GAPLESS_HOME": str(self.home),
            "GAPLESS_PORT": str(self.port),
            "GAPLESS_URL": self.url,
            "GAPLESS_LOG_LEVEL": "warning",
            **({"GAPLESS_TOKEN": self.credential} if self.credential else {}),
            **chosen,
        }

    def start(self) -> None:
        """Start it, or start it again on the same home and port."""
        command = [str(self.checkout / "gapless"), "serve", "--port", str(self.port)]
        self._announced = self._announcements()
        self.child = Child(command, self.home / "serve.log", self.env).start()

    def command(self, *arguments: str) -> str:
        """What a command of this installation prints. Raises RuntimeError if it fails."""
        done = subprocess.run(
            [str(self.checkout / "gapless"), *arguments],
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"gapless {' '.join(arguments[:2])}: {done.stderr}")
        return done.stdout.strip()

    async def wait_ready(self, patience: float = PATIENCE_S) -> float:
        """Wait until /readyz answers 200. Returns the seconds. Raises RuntimeError after `patience`."""

        async def is_ready() -> bool:
            if self.child is not None and self.child.code() is not None:
                raise RuntimeError(f"serve ended with {self.child.code()}")
            answer = await self.get("/readyz")
            return answer is not None and answer.status == 200 and self._all_announced()

        try:
            return await until(is_ready, "/readyz says 200", patience)
        except RuntimeError as error:
            raise RuntimeError(f"{error}:\n{self.child.tail() if self.child else ''}") from error

    def _all_announced(self) -> bool:
        """Whether all workers are ready. With several, one of them answers /readyz, and the supervisor's line
        counts."""
        return self.settings.get("workers", "1") == "1" or self._announcements() > self._announced

    def _announcements(self) -> int:
        """How often this installation has told its log that it is ready."""
        try:
            return (self.home / "serve.log").read_text().count("Gapless is ready on ")
        except FileNotFoundError:
            return 0

    async def get(self, path: str, wait: float = LOOK_S) -> Response | None:
        """One GET on a new connection; None if the server cannot be reached."""
        try:
            connection = await Connection.open(self.target)
        except OSError:
            return None
        try:
            return await connection.ask(self.target.request("GET", path), wait)
        except ConnectionError:
            return None
        finally:
            connection.close()

    def family(self) -> list[int]:
        """All its processes, the launcher first."""
        assert self.child is not None, "not started"
        return tree(self.child.pid)

    def own(self) -> list[int]:
        """Its Python processes: all but the embedded databases."""
        return [pid for pid in self.family() if _program(pid).startswith("python")]

    def redis(self) -> int | None:
        """The process of the embedded Redis."""
        for pid in self.family():
            if _program(pid).startswith(("valkey", "redis")):
                return pid
        return None

    def postgres(self) -> int | None:
        """The process of the embedded postmaster, from its pid file."""
        for path in self.home.rglob("postmaster.pid"):
            try:
                return int(path.read_text().split("\n", 1)[0])
            except (OSError, ValueError):
                continue
        return None

    def postgres_address(self) -> tuple[str, int]:
        """The folder of the embedded Postgres' socket and its port, from its pid file. Raises OSError,
        IndexError and ValueError before it listens."""
        lines = (self.home / "postgres" / "postmaster.pid").read_text().splitlines()
        return lines[4], int(lines[3])

    def postgres_url(self, user: str = OWNER, database: str = "gapless") -> str:
        """The URL of the embedded Postgres. Raises the errors of `postgres_address`."""
        folder, port = self.postgres_address()
        return f"postgresql://{user}@/{database}?host={quote(folder, safe='/')}&port={port}"

    async def connect(self, user: str = OWNER, database: str = "gapless") -> asyncpg.Connection:
        """A new session in the embedded Postgres. Raises the errors in `AWAY`."""
        return await asyncpg.connect(self.postgres_url(user, database), timeout=LOOK_S)

    def redis_socket(self) -> str | None:
        """The socket of the embedded Redis, from its arguments or from the title that it sets later."""
        pid = self.redis()
        words = command_of(pid).replace("--unixsocket ", "unixsocket:").split() if pid is not None else []
        return next((w.removeprefix("unixsocket:") for w in words if w.startswith("unixsocket:")), None)

    def kill(self) -> None:
        """Send SIGKILL to all its Python processes at once, and not to the databases."""
        assert self.child is not None, "not started"
        kill(self.own())
        assert self.child.process is not None
        self.child.process.wait()

    def stop(self) -> None:
        """Stop it with SIGTERM, as users do."""
        if self.child is not None:
            self.child.stop(grace_s=20.0)


def _program(pid: int) -> str:
    """The file name of a process' program."""
    return Path(command_of(pid).split(" ")[0]).name


@asynccontextmanager
async def serving(checkout: Path = CHECKOUT, **settings: str) -> AsyncIterator[Server]:
    """The service of a checkout on a new home until the block ends. The home is removed afterwards."""
    with temporary_home("load") as home:
        server = Server(home, settings, checkout=checkout)
        try:
            server.start()
            await server.wait_ready()
            yield server
        finally:
            server.stop()
