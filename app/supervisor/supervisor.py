"""Starts everything in order, watches it in one loop, and stops it in the reverse order."""

import asyncio
import os
import resource
import select
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TextIO

from app.embedded import EmbeddedError
from app.supervisor import listener
from app.supervisor.config import Endpoints, SupervisorConfig
from app.supervisor.pool import Pool
from app.supervisor.servers import Servers
from app.supervisor.signals import Signals
from app.supervisor.waiting import NotYetError, Waiting
from app.supervisor.worker import Worker

_TICK_S = 0.2  # for timed work only; signals and readiness wake the loop at once
_FILES = 65_536
_ASK_AGAIN_S = 0.5


Prepare = Callable[[Endpoints], Awaitable[None]]


def run(config: SupervisorConfig, prepare: Prepare, needs: str = "the database") -> int:
    """Serve until SIGTERM or SIGINT, then stop in order: workers, Redis, Postgres. Returns the exit code.

    `prepare` runs before the first worker starts, and again as long as it raises `NotYetError`; `needs` names
    what it waits for then. A request to stop cancels it. Its other exceptions go to the caller after all
    servers have stopped. SIGHUP replaces the workers one by one. A second SIGTERM or SIGINT kills them
    without waiting.
    """
    signals = Signals()
    with signals.installed():
        try:
            return _serve(config, lambda servers: _prepared(prepare, servers, signals, needs), signals)
        except (EmbeddedError, listener.ListenError) as error:
            if signals.stops:
                return 0
            _say(str(error))
            return 1


def _serve(config: SupervisorConfig, prepared: Callable[[Servers], bool], signals: Signals) -> int:
    _allow_many_files()
    if os.geteuid() == 0:
        _say("running as root: an attacker in a worker would be root; run Gapless as an ordinary user")
    servers = Servers(config, _say, stopping=lambda: signals.stops > 0)
    try:
        with listener.listen(config.host, config.port) as listening:
            if not prepared(servers):
                return 0
            pool = _pool(config, servers.endpoints, listening)
            try:
                return _watch(pool, servers, signals, listener.url(listening))
            finally:
                listening.close()
                _stop(pool, signals, config.stop_timeout_s)
    finally:
        servers.stop()


def _prepared(prepare: Prepare, servers: Servers, signals: Signals, needs: str) -> bool:
    """Whether `prepare` succeeded. False: a request to stop ended the wait."""
    with Waiting(_say, needs) as waiting:
        while not signals.stops:
            try:
                asyncio.run(signals.unless_stopped(prepare(servers.endpoints)))
            except asyncio.CancelledError:
                return False
            except NotYetError as error:
                waiting.because(str(error), error.what)
            else:
                waiting.arrived()
                return True
            servers.step()
            select.select([signals.fileno()], [], [], _ASK_AGAIN_S)
            signals.drain()
    return False


def _watch(pool: Pool, servers: Servers, signals: Signals, url: str) -> int:
    announced = False
    while not signals.stops:
        if signals.reload:
            signals.reload = False
            pool.roll()
        servers.step()
        pool.step()
        if os.getpid() == 1:
            _bury_strangers({*servers.pids(), *pool.pids()})
        if pool.hopeless():
            _say("the workers end as soon as they start; giving up")
            return 1
        if not announced and pool.all_ready():
            announced = True
            _say(f"Gapless is ready on {url}", sys.stdout)
        _wait(pool, signals)
    return 0


def _stop(pool: Pool, signals: Signals, patience_s: float) -> None:
    asked = signals.stops
    pool.stop(patience_s)
    while not pool.stopped():
        if signals.stops > max(asked, 1):
            pool.stop(0.0)
        _wait(pool, signals)


def _wait(pool: Pool, signals: Signals) -> None:
    pipes = [pipe for worker in pool.workers() for pipe in worker.listening_for()]
    select.select([signals.fileno(), *pipes], [], [], _TICK_S)
    signals.drain()


def _pool(config: SupervisorConfig, endpoints: Endpoints, listening: socket.socket) -> Pool:
    shared = {
        **config.environment,
        "GAPLESS_DATABASE_URL": endpoints.service_url,
        "GAPLESS_REDIS_URL": endpoints.redis_url,
    }

    def spawn(index: int, restarts: int) -> Worker:
        own = {"GAPLESS_WORKER_INDEX": str(index), "GAPLESS_WORKER_RESTARTS": str(restarts)}
        return Worker(config.worker_argv, {**shared, **own}, listening.fileno())

    return Pool(config, spawn, _say)


def _bury_strangers(own: set[int]) -> None:
    """Reaps orphaned processes. In a container, they become children of the first process."""
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while (dead := os.waitid(os.P_ALL, 0, options)) is not None and dead.si_pid not in own:
        os.waitpid(dead.si_pid, os.WNOHANG)


def _allow_many_files() -> None:
    """Raises the limit of open files, usually 1024: every stream is one. Children inherit the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _say(text: str, to: TextIO = sys.stderr) -> None:
    # The service goes on if the reader of this stream is gone.
    with suppress(OSError, ValueError):
        print(text, file=to, flush=True)
