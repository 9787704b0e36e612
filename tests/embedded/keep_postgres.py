"""A parent to be killed: starts an embedded Postgres on the home given and waits.

With `half made` as its second argument it waits on the way, once `initdb` has made its files.
"""

import signal
import sys
from pathlib import Path

from app.embedded import EmbeddedPostgres, EmbeddedRedis, HomeLock, cluster
from app.embedded.identity import Identity

_run = cluster.run


def _run_and_wait(program: list[str], identity: Identity, text: bytes = b"") -> str:
    _run(program, identity, text)
    print("half made")
    signal.pause()
    raise AssertionError("it is to be killed")


if sys.argv[2:] == ["half made"]:
    cluster.run = _run_and_wait
home = Path(sys.argv[1])
HomeLock(home).take()
print("starting")
postgres = EmbeddedPostgres(home)
postgres.start()
redis = EmbeddedRedis(home)
redis.start()
print("started", postgres.pid, redis.pid)
signal.pause()
