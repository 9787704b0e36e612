"""The embedded servers of a supervisor: started first and in order, restarted if they die, stopped last."""

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from app.embedded import EmbeddedError, EmbeddedPostgres, EmbeddedRedis, HomeLock, PassingError
from app.embedded.logs import LogFile
from app.embedded.processes import wait_until
from app.supervisor.config import Endpoints, SupervisorConfig
from app.supervisor.waiting import Say, Waiting

_ROTATE_EVERY_S = 60.0
_MAX_DELAY_S = 10.0
_TRY_AGAIN_S = 1.0

Made = TypeVar("Made")


class Server(Protocol):
    @property
    def log(self) -> LogFile: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def alive(self) -> bool: ...
    @property
    def pid(self) -> int | None: ...


class Servers:
    """The servers for which no URL was given. If both were given, there are no servers, and no home is
    used."""

    def __init__(self, config: SupervisorConfig, say: Say, stopping: Callable[[], bool]) -> None:
        self._say = say
        self._stopping = stopping
        self._lock: HomeLock | None = None
        self._running: dict[str, Server] = {}
        self._retry_at: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._rotate_at = 0.0
        self.endpoints = self._start(config)

    def step(self) -> None:
        """Restarts a server that died, and waits until it has recovered or until a request to stop."""
        for name, server in self._running.items():
            if not server.alive() and time.monotonic() >= self._retry_at.get(name, 0.0):
                self._revive(name, server)
        if time.monotonic() >= self._rotate_at:
            self._rotate_at = time.monotonic() + _ROTATE_EVERY_S
            for server in self._running.values():
                server.log.rotate()

    @property
    def there(self) -> bool:
        """Whether there are any."""
        return bool(self._running)

    def pids(self) -> list[int]:
        return [server.pid for server in self._running.values() if server.pid is not None]

    def stop(self) -> None:
        for server in reversed(self._running.values()):
            server.stop()
        if self._lock is not None:
            self._lock.release()

    def _start(self, config: SupervisorConfig) -> Endpoints:
        owner, service, redis = config.database_url, config.database_url, config.redis_url
        admin: str | None = None
        if service is None or redis is None:
            self._lock = HomeLock(config.home)
            self._insist(f"the home {config.home}", self._lock.take)
        try:
            if owner is None or service is None:
                self._say(f"no GAPLESS_DATABASE_URL: using an embedded Postgres in {config.home}")
                postgres = EmbeddedPostgres(config.home, interrupted=self._stopping)
                self._running["Postgres"] = postgres
                self._insist("the embedded Postgres", postgres.start)
                owner, service, admin = postgres.owner_url, postgres.service_url, postgres.admin_url
            if redis is None:
                self._say(f"no GAPLESS_REDIS_URL: using an embedded Redis in {config.home}")
                own = EmbeddedRedis(config.home)
                self._running["Redis"] = own
                self._begin("Redis", own)
                redis = own.url
        except BaseException:
            self.stop()
            raise
        return Endpoints(owner, service, redis, admin)

    def _insist(self, what: str, act: Callable[[], Made]) -> Made:
        """Does a necessary step, again after each `PassingError`. Raises `EmbeddedError` if asked to stop."""
        with Waiting(self._say, what) as waiting:
            while True:
                try:
                    made = act()
                except PassingError as error:
                    waiting.because(str(error))
                else:
                    waiting.arrived()
                    return made
                if wait_until(self._stopping, _TRY_AGAIN_S):
                    raise EmbeddedError(f"interrupted while waiting for {what}")

    def _begin(self, name: str, server: Server) -> None:
        """Starts a server that the service can do without for a while. If it cannot start now, `step` tries
        again."""
        with Waiting(self._say, f"the embedded {name}") as waiting:
            try:
                server.start()
            except PassingError as error:
                self._try_later(name, error)
            else:
                waiting.arrived()

    def _revive(self, name: str, server: Server) -> None:
        self._say(f"{name} is gone; starting it again")
        started_at = time.monotonic()
        try:
            server.start()
        except EmbeddedError as error:
            self._try_later(name, error)
        else:
            self._failures[name] = 0
            self._say(f"{name} is back after {time.monotonic() - started_at:.1f} s")

    def _try_later(self, name: str, error: EmbeddedError) -> None:
        self._failures[name] = self._failures.get(name, 0) + 1
        delay_s = min(_MAX_DELAY_S, 0.5 * 2 ** self._failures[name])
        self._retry_at[name] = time.monotonic() + delay_s
        self._say(f"{name} did not start, next try in {delay_s:.0f} s: {error}")
