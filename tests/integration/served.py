"""Starts a worker that serves in one of the ways of `wrapped_worker`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from app.embedded import EmbeddedPostgres
from load.children import CHECKOUT, Child, free_port, python_path, wait_for_port
from tests.conftest import External, drop_database, make_database, service_environment
from tests.patience import PATIENCE_S, wait_until

PAGE = "https://chat.example.org"
"""The one site whose pages may use it."""


@contextmanager
def worker(
    way: str, postgres: EmbeddedPostgres | External, redis_url: str, folder: Path, **settings: str
) -> Iterator[tuple[str, Child]]:
    """A worker with a database of its own: where it listens, and the process. It hears through Redis."""
    made, port = asyncio.run(make_database(postgres)), free_port()
    environment = {
        **service_environment(made, redis_url, folder),
        "GAPLESS_ALLOWED_ORIGINS": PAGE,
        **settings,
    }
    environment["PYTHONPATH"] = python_path()
    program = str(CHECKOUT / "tests" / "integration" / "wrapped_worker.py")
    child = Child((sys.executable, "-P", program, str(port), way), folder / "log", environment)
    child.start()
    try:
        wait_for_port(port, child)
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: httpx.get(f"{url}/readyz", timeout=PATIENCE_S).json().get("redis"))
        yield url, child
    finally:
        child.stop(PATIENCE_S)
        asyncio.run(drop_database(postgres, made))
