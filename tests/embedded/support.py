"""What the tests of the embedded servers share."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import asyncpg

from tests.patience import PATIENCE_S

Launch = Callable[..., subprocess.Popen[str]]


def kill(*pids: int | None) -> None:
    """End processes as a crash would."""
    for pid in pids:
        assert pid is not None
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def query(url: str, sql: str) -> Any:
    async def run() -> Any:
        connection = await asyncpg.connect(url, timeout=PATIENCE_S)
        try:
            return await connection.fetchval(sql)
        finally:
            await connection.close()

    return asyncio.run(run())
