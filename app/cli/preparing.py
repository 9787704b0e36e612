"""The preparation of `gapless serve` before its first worker runs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gapless_cli.failures import Failure, say, usage

if TYPE_CHECKING:
    from app.process.settings import Settings
    from app.supervisor.config import Endpoints

METRICS_BYTES = 4 * 1024 * 1024
"""The space that one worker's metrics files need at most."""


class Preparation:
    """Prepares database and home before the first worker. The supervisor may call it several times."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._looked_at_redis = False

    async def __call__(self, endpoints: Endpoints) -> None:
        """Raises `NotYetError` for passing troubles, `MigrationError` and `Failure` for lasting ones."""
        from app.supervisor.waiting import NotYetError
        from db.availability import DatabaseUnavailableError, migrate_now, requires_credentials

        if not self._looked_at_redis:
            self._looked_at_redis = True
            await _tell_of_silent_redis(endpoints.redis_url)
        try:
            _make_metrics_folder(self._settings)
            url = self._settings.migrate_url or endpoints.owner_url
            migrated = await migrate_now(url, endpoints.admin_url)
            if not self._settings.may_be_open:
                _refuse_open(self._settings, await requires_credentials(url))
        except DatabaseUnavailableError as error:
            raise NotYetError(str(error)) from None
        for name in migrated:
            print(f"migrated {name}", file=sys.stderr, flush=True)


def needed(settings: Settings) -> str:
    """The name of the database in messages."""
    from app.cli.doctor.settings import without_password

    url = settings.migrate_url or settings.database_url
    return "its database" if url is None else f"the database at {without_password(url)}"


def _refuse_open(settings: Settings, required: bool) -> None:
    if not required:
        raise usage(
            f"{settings.host} can be reached from other machines and there are no credentials: everybody"
            " there could read and write. Make a key with gapless keys create, listen on 127.0.0.1, or set"
            " GAPLESS_ALLOW_ANONYMOUS=1 if a proxy or the network keeps others out."
        )


async def _tell_of_silent_redis(url: str) -> None:
    """Reports a Redis that does not answer. Nothing waits for it: without Redis messages of other processes
    come with the sweep."""
    from app.cli.doctor.settings import without_password
    from cache.probe import silence_of

    try:
        reason = await silence_of(url)
    except ValueError as error:
        raise usage(f"GAPLESS_REDIS_URL: {error}") from None
    if reason is not None:
        say(
            f"Redis at {without_password(url)} does not answer ({reason}): going on without it; until it"
            " does, what other processes publish is up to a second late"
        )


def metrics_folder(settings: Settings) -> Path:
    """The folder for the metrics of several workers."""
    return settings.home.absolute() / "metrics"


def _make_metrics_folder(settings: Settings) -> None:
    """Makes an empty folder, once the home is this supervisor's: that of another is left alone. Workers map
    its files into memory, and on a full disk that kills a worker silently, so the room is checked first."""
    from app.embedded.errors import EmbeddedError, PassingError, in_words
    from app.supervisor.waiting import NotYetError

    if settings.workers == 1:
        return
    folder = metrics_folder(settings)
    shutil.rmtree(folder, ignore_errors=True)
    try:
        with in_words(settings.home.absolute()):
            folder.mkdir(parents=True, exist_ok=True)
            _try_room(folder / "room", settings.workers * METRICS_BYTES)
    except PassingError as error:
        raise NotYetError(str(error), f"the home {settings.home}") from None
    except EmbeddedError as error:
        raise Failure(str(error)) from None


def _try_room(file: Path, size_bytes: int) -> None:
    """Raises OSError if the disk has less room than that."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):  # not on macOS
            os.posix_fallocate(descriptor, 0, size_bytes)
    finally:
        os.close(descriptor)
        file.unlink()
