"""A headless Chromium with a new profile, in which `*.test` names lead to this machine."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from load.children import Child
from load.waiting import PATIENCE_S

NAMES = "MAP *.test 127.0.0.1"
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-popup-blocking",
    "--no-first-run",
    "--disable-background-networking",
    f"--host-resolver-rules={NAMES}",
)


def program() -> str:
    """The path of Chromium. Raises FileNotFoundError."""
    found = shutil.which("chromium")
    if found is None:
        raise FileNotFoundError("there is no Chromium")
    return found


@asynccontextmanager
async def opened(url: str, folder: Path) -> AsyncIterator[Child]:
    """A browser that opens this address as if a user had typed it, until the block ends."""
    profile = folder / "profile"
    command = [program(), *_FLAGS, f"--user-data-dir={profile}", url]
    child = Child(command, folder / "chromium.log").start()
    try:
        yield child
    finally:
        await asyncio.to_thread(child.stop, 5.0)
        shutil.rmtree(profile, ignore_errors=True)


async def drawn(url: str, folder: Path, patience_s: float = PATIENCE_S) -> str:
    """The HTML of the document at this address after its scripts and redirects."""
    options = ("--dump-dom", "--virtual-time-budget=20000", f"--user-data-dir={folder / 'profile'}")
    process = await asyncio.create_subprocess_exec(
        program(), *_FLAGS, *options, url, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(patience_s):
            out, _ = await process.communicate()
    except BaseException:
        process.kill()
        raise
    return out.decode(errors="replace")
