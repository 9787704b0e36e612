"""The process beside a service that runs under another ASGI server; see `app.process.standalone.Companion`.

It writes one line of JSON to standard output once all is there, and ends when its standard input does.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from gapless_cli.failures import Failure

from app.cli.preparing import Preparation, needed
from app.cli.settings import settings_from

if TYPE_CHECKING:
    from app.supervisor.config import Endpoints


def main() -> int:
    """Returns the exit code."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        return _hold()
    except Failure as failure:
        print(failure, file=sys.stderr, flush=True)
        return failure.code


def _hold() -> int:
    from app.supervisor.config import SupervisorConfig
    from app.supervisor.supervisor import hold
    from db.migrate import MigrationError

    settings = settings_from(workers=1)
    config = SupervisorConfig(
        home=settings.home.absolute(), database_url=settings.database_url, redis_url=settings.redis_url
    )
    try:
        return hold(config, Preparation(settings), _tell, needs=needed(settings))
    except MigrationError as error:
        raise Failure(f"{needed(settings)}: {error}") from None


def _tell(endpoints: Endpoints) -> None:
    import msgspec

    from app.process.standalone import Urls

    sys.stdout.buffer.write(msgspec.json.encode(Urls(endpoints.service_url, endpoints.redis_url)) + b"\n")
    sys.stdout.flush()


def _end_with_input() -> None:
    # By its descriptor: the interpreter aborts at its end when a thread still holds the lock of `sys.stdin`.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
