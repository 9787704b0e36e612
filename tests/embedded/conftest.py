"""Homes in a temporary folder, and servers that are gone when a test ends."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.embedded import EmbeddedPostgres, EmbeddedRedis
from tests.embedded.support import Launch
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def postgres(home: Path) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(home)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis(home: Path) -> Iterator[EmbeddedRedis]:
    server = EmbeddedRedis(home)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Run a Python program with the checkout on its path; its output is text. Killed at the end."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str, **environment: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate(timeout=PATIENCE_S)
