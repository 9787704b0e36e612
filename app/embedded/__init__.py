"""Postgres and Redis of Gapless' own, for whoever has set no URL: started, watched and stopped as children.

The API is synchronous: it serves a supervising process and test sessions, never an event loop.
"""

from app.embedded.errors import EmbeddedError, PassingError
from app.embedded.home import HomeLock
from app.embedded.postgres import EmbeddedPostgres
from app.embedded.redis import EmbeddedRedis

__all__ = ["EmbeddedError", "EmbeddedPostgres", "EmbeddedRedis", "HomeLock", "PassingError"]
