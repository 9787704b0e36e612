"""What the tests of the embedded servers share."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import asyncpg

from app.embedded.processes import wait_until

Launch = Callable[..., subprocess.Popen[str]]


def kill(*pids: int | None) -> None:
    """End processes as a crash would."""
    for pid in pids:
        assert pid is not None
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def eventually(condition: Callable[[], bool], timeout_s: float = 15.0) -> None:
    assert wait_until(condition, timeout_s), "did not come true in time"


def query(url: str, sql: str) -> Any:
    async def run() -> Any:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(run())
