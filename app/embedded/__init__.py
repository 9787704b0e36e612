"""Embedded Postgres and Redis, used when no URL is set. They are child processes.

The API is synchronous: it is for a supervisor and for test sessions, not for an event loop.
"""

from app.embedded.errors import EmbeddedError, PassingError
from app.embedded.home import HomeLock
from app.embedded.postgres import EmbeddedPostgres
from app.embedded.redis import EmbeddedRedis

__all__ = ["EmbeddedError", "EmbeddedPostgres", "EmbeddedRedis", "HomeLock", "PassingError"]
