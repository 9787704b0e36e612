"""Puts the checks together."""

from __future__ import annotations

from app.cli.doctor import database, home, machine, redis, server
from app.cli.doctor.check import Check, ok
from app.cli.doctor.home import Home
from app.cli.doctor.settings import check_names
from app.embedded import EmbeddedPostgres, EmbeddedRedis
from app.process.settings import Settings


def examine(settings: Settings) -> list[Check]:
    """Everything, from the ground up. A running server is not needed, and nothing is started or changed."""
    own_postgres, own_redis = settings.database_url is None, settings.redis_url is None
    found = [check_names(settings), *machine.checks(own_postgres, own_redis)]
    place = home.read_home(settings.home.absolute())
    if own_postgres or own_redis:
        found += home.checks(place)
    judged, required = _database(settings, place)
    found += judged
    found += _redis(settings, place)
    return found + server.checks(settings, required or settings.takes_tokens)


def _database(settings: Settings, place: Home) -> tuple[list[Check], bool]:
    if settings.database_url is not None:
        return database.checks(settings.database_url)
    if place.holder is None:
        return [ok("database", "embedded, not running: serve starts it")], False
    return database.checks(EmbeddedPostgres(place.path).service_url)


def _redis(settings: Settings, place: Home) -> list[Check]:
    if settings.redis_url is not None:
        return redis.checks(settings.redis_url)
    if place.holder is None:
        return [ok("redis", "embedded, not running: serve starts it")]
    return redis.checks(EmbeddedRedis(place.path).url)
