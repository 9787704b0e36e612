"""Every example is run, page by page from top to bottom, each page against a fresh service.

Commands (`sh` with curl) are compared with the output shown after them; times, request ids and receipts may
differ.
Python and SQL have to run, and Python to print what is shown. `<!-- not run: why -->` before one skips it.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import asyncpg
import httpx
import pytest

from tests.conftest import Database, Serve
from tests.docs.pages import Fence, fences
from tests.support import ROOT, eventually

HOW_TO = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "docs" / "howto").glob("*.md")
    if not path.name.startswith("spark-")  # test_spark_pages.py runs these
)
PAGES = ["README.md", "docs/quickstart.md", "docs/protocol.md", "docs/reference.md", *HOW_TO]
ADDRESS = "http://127.0.0.1:8080"
READY = ('data: {"cursor"', 'data: {"receipt"')
"""A stream does not end: it is listened to until it says that all history is sent, or gave a delivery."""

_VARIES = [
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"), "<time>"),
    (re.compile(r"(?i)(x-request-id: )[0-9a-f-]+"), r"\1<id>"),
    (re.compile(r'"AQ[0-9A-Za-z_-]{58}"'), '"<receipt>"'),
    (re.compile(r'("oldest_unacked_seconds":)[0-9.]+'), r"\1<seconds>"),
]


def normal(output: str) -> str:
    """The output without what differs from run to run."""
    for pattern, name in _VARIES:
        output = pattern.sub(name, output)
    return output.replace("\r\n", "\n").strip()


async def run(fence: Fence, url: str, database: Database, folder: Path) -> str | None:
    """The output of one fence; None for one that cannot be run."""
    if fence.skipped:
        return None
    if fence.language == "sql":
        owner = await asyncpg.connect(database.owner_url)
        try:
            await owner.execute(fence.text)
        finally:
            owner.terminate()
        return None
    if fence.language == "python":
        command = [sys.executable, "-W", "error", "-c", fence.text.replace(ADDRESS, url)]
    elif fence.language == "sh" and "curl " in fence.text:
        script = f'curl() {{ command curl -sS "$@"; }}\n{fence.text}'
        command = ["bash", "-ec", script.replace(ADDRESS, url)]
    else:
        return None
    environment = {**os.environ, "GAPLESS_URL": url, "PYTHONPATH": str(ROOT / "client")}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as running:
        if "curl -N" in fence.text:
            output = until_ready(running)
            os.killpg(running.pid, signal.SIGKILL)
            return output
        output, errors = running.communicate(timeout=60)
    assert (running.returncode, errors) == (0, ""), f"{fence}: {output}{errors}"
    return output


def until_ready(running: subprocess.Popen[str]) -> str:
    """What a stream says up to and with its `ready`, or its first delivery."""
    assert running.stdout is not None
    lines = []
    for line in running.stdout:
        lines.append(line)
        if line.startswith(READY):
            break
    return "".join(lines)


@pytest.mark.parametrize("page", PAGES)
async def test_examples_do_what_the_page_says(
    page: str, serve: Serve, database: Database, tmp_path: Path
) -> None:
    service = serve()
    await eventually(lambda: httpx.get(f"{service.url}/readyz").is_success)
    ran = 0
    for fence in fences(page):
        output = await run(fence, service.url, database, tmp_path)
        if output is None:
            continue
        ran += 1
        if fence.answer is not None:
            expected = fence.answer.replace(ADDRESS, service.url)
            assert normal(output) == normal(expected), fence
    assert ran
