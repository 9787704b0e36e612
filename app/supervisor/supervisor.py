"""Starts everything in order, watches it in one loop, and stops it in the reverse order."""

import asyncio
import os
import resource
import select
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
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
_AS_ROOT = "running as root: an attacker in a worker would be root; run Gapless as an ordinary user"


Prepare = Callable[[Endpoints], Awaitable[None]]


def run(config: SupervisorConfig, prepare: Prepare, needs: str = "the database") -> int:
    """Serve until SIGTERM or SIGINT, then stop in order: workers, Redis, Postgres. Returns the exit code.

    `prepare` runs before the first worker starts, and again as long as it raises `NotYetError`; `needs` names
    what it waits for then. A request to stop cancels it. Its other exceptions go to the caller after all
    servers have stopped. SIGHUP replaces the workers one by one. A second SIGTERM or SIGINT kills them
    without waiting.
    """
    return _supervised(config, partial(_serve, config, prepare, needs))


def hold(
    config: SupervisorConfig,
    prepare: Prepare,
    ready: Callable[[Endpoints], None],
    needs: str = "the database",
) -> int:
    """As `run`, without workers: another server runs the service. `ready` gets the URLs once all is there.
    Without embedded servers there is nothing to hold then, so it returns."""
    return _supervised(config, partial(_hold, prepare, needs, ready))


def _supervised(config: SupervisorConfig, act: Callable[[Servers, Signals], int]) -> int:
    signals = Signals()
    with signals.installed():
        try:
            _allow_many_files()
            if os.geteuid() == 0:
                _say(_AS_ROOT)
            servers = Servers(config, _say, stopping=lambda: signals.stops > 0)
            try:
                return act(servers, signals)
            finally:
                servers.stop()
        except (EmbeddedError, listener.ListenError) as error:
            if signals.stops:
                return 0
            _say(str(error))
            return 1


def _serve(config: SupervisorConfig, prepare: Prepare, needs: str, servers: Servers, signals: Signals) -> int:
    with listener.listen(config.host, config.port) as listening:
        if not _prepared(prepare, servers, signals, needs):
            return 0
        pool = _pool(config, servers.endpoints, listening)
        try:
            return _watch(pool, servers, signals, listener.url(listening))
        finally:
            listening.close()
            _stop(pool, signals, config.stop_timeout_s)


def _hold(
    prepare: Prepare, needs: str, ready: Callable[[Endpoints], None], servers: Servers, signals: Signals
) -> int:
    if not _prepared(prepare, servers, signals, needs):
        return 0
    ready(servers.endpoints)
    while servers.there and not signals.stops:
        servers.step()
        select.select([signals.fileno()], [], [], _TICK_S)
        signals.drain()
    return 0


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
