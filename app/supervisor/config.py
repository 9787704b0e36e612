"""The supervisor's settings, and the URLs that it passes on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from app import launch


@dataclass(frozen=True, slots=True)
class SupervisorConfig:
    """The supervisor's settings. Times are in seconds. A URL of None means an embedded server under `home`.

    A worker runs `worker_argv`. The supervisor adds these variables to its own environment for the worker:
    `environment`, `GAPLESS_DATABASE_URL`, `GAPLESS_REDIS_URL`, `GAPLESS_LISTEN_FD` (the listening socket),
    `GAPLESS_READY_FD` (a pipe: the worker writes one byte when it serves), `GAPLESS_WORKER_INDEX` and
    `GAPLESS_WORKER_RESTARTS` (how often this worker was restarted after a death).
    """

    home: Path
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    database_url: str | None = None
    redis_url: str | None = None
    worker_argv: tuple[str, ...] = launch.command("app.process.worker")
    environment: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_s: float = 60.0
    stop_timeout_s: float = 12.0


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The URLs of the servers. With an external database, both of its URLs are the given one, and there is no
    `admin_url`."""

    owner_url: str
    service_url: str
    redis_url: str
    admin_url: str | None = None
