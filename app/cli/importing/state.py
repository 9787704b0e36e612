"""How far an import came, on disk: what survives a kill -9 of the importer at any moment."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from gapless_cli.failures import Failure

from app.cli.importing.batches import BEGINNING, Place

SCHEME = 1
"""Goes up when files are cut into other batches than before: a half-done import is then not continued."""


REMEMBERED_S = 24 * 3600
"""For so long the service knows a batch again by its idempotency key."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`place` is behind the last batch that was answered; `last_channel` and `last_id` are its last message.

    `run` tells one import of a file from a later one that was asked for on purpose. Times as in RFC 3339.
    """

    source: str
    url: str
    run: str
    place: Place = BEGINNING
    messages: int = 0
    skipped: int = 0
    last_channel: str | None = None
    last_id: int = 0
    finished_at: str | None = None


class StateFile:
    """One import's progress. Each save replaces the whole file durably, or leaves the one before."""

    def __init__(self, folder: Path, identity: str, url: str) -> None:
        where = hashlib.sha256(url.encode()).hexdigest()[:8]
        self.path = folder / f"{identity}-{where}.json"

    def load(self) -> Progress | None:
        """None when this was never begun. Raises `Failure` for a file that is not one of this program."""
        try:
            raw = json.loads(self.path.read_text())
            if raw.pop("scheme") != SCHEME:
                raise Failure(f"{self.path} was written by another version: --again starts over")
            return Progress(**{**raw, "place": Place(**raw["place"])})
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Failure(f"{self.path} is damaged ({error}): remove it, or --again starts over") from None

    def save(self, progress: Progress) -> None:
        """When this returns, no crash takes it back."""
        fresh = self.path.with_suffix(".new")
        with fresh.open("w") as file:
            json.dump({"scheme": SCHEME, **asdict(progress)}, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def age_s(self) -> float:
        """Seconds since the last save."""
        return time.time() - self.path.stat().st_mtime

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Raises `Failure` while another process imports the same. The lock ends with the process."""
        with self.path.with_suffix(".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Failure("another process is importing this already") from None
            yield


def identity_of(digest: str, channel: str | None) -> str:
    """Names what is imported: the file's content and what is added to it, not its path."""
    facts = json.dumps([SCHEME, digest, channel])
    return hashlib.sha256(facts.encode()).hexdigest()[:32]


def idempotency_key(identity: str, run: str, number: int) -> str:
    """The same for the same batch of the same run, whoever sends it and however often."""
    return f"import-{identity}-{run}-{number}"
