"""The parent process of `gapless serve`: embedded servers, the listening socket and the workers.

`run(config, prepare)` returns the exit code. It must be called on the main thread.
"""

from app.supervisor.config import Endpoints, SupervisorConfig
from app.supervisor.supervisor import run
from app.supervisor.waiting import NotYetError

__all__ = ["Endpoints", "NotYetError", "SupervisorConfig", "run"]
