"""A parent to be killed: starts an embedded Postgres on the home given and waits, or dies on the way."""

import signal
import sys
from pathlib import Path

from app.embedded import EmbeddedPostgres, EmbeddedRedis, HomeLock

home = Path(sys.argv[1])
HomeLock(home).take()
print("starting")
postgres = EmbeddedPostgres(home)
postgres.start()
redis = EmbeddedRedis(home)
redis.start()
print("started", postgres.pid, redis.pid)
signal.pause()
