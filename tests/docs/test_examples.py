"""Every example is run, page by page from top to bottom, each page against a fresh service.

Commands (`sh` with curl) are compared with the output shown after them; times, request ids and receipts may
differ.
Python and SQL have to run, and Python to print what is shown; its sleeps take no time.
`<!-- not run: why -->` before one skips it.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest

from app.faces.webhooks.signature import signed
from tests.conftest import Database, Serve
from tests.docs.pages import ANSWERS, Fence, fences, pages
from tests.docs.test_spark_pages import PAGES as SPARK_PAGES
from tests.patience import PATIENCE_S, eventually
from tests.support import ROOT

HOW_TO = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "docs" / "howto").glob("*.md")
    if not path.name.startswith(("spark-", "securing."))
)
"""Without the pages that have a test of their own for all of their blocks."""
PAGES = [
    "README.md",
    "docs/quickstart.md",
    "docs/protocol.md",
    "docs/reference.md",
    "docs/operations.md",
    *HOW_TO,
]
SHOWN = ("", *ANSWERS)
"""Fences without a language, and output, show something; the others are for running."""
AWAKE = "import time; time.sleep = lambda _: None\n"
ADDRESS = "http://127.0.0.1:8080"
READY = ('data: {"cursor"', 'data: {"receipt"')
"""A stream does not end: it is listened to until it says that all history is sent, or gave a delivery."""

_VARIES = [
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"), "<time>"),
    (re.compile(r"(?i)(x-request-id: )[0-9a-f-]+"), r"\1<id>"),
    (re.compile(r'"AQ[0-9A-Za-z_-]{58}"'), '"<receipt>"'),
    (re.compile(r'("oldest_unacked_seconds":)[0-9.]+'), r"\1<seconds>"),
    # The frontier may pass messages that do not match at any moment.
    (re.compile(r'("purged":[0-9]+,"cursor":)[0-9]+'), r"\1<id>"),
]


def normal(output: str) -> str:
    """The output without what differs from run to run."""
    for pattern, name in _VARIES:
        output = pattern.sub(name, output)
    return output.replace("\r\n", "\n").strip()


def is_run(fence: Fence) -> bool:
    """Whether it is something that can be run here."""
    return fence.language in ("sql", "python") or (fence.language == "sh" and "curl " in fence.text)


def only_reads(fence: Fence) -> bool:
    """Whether it is one request that changes nothing, and ends by itself."""
    return fence.text.startswith("curl '") and not re.search(r" -[a-zA-Z]|--", fence.text)


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
        return ""
    if fence.language == "python":
        command = [sys.executable, "-W", "error", "-c", AWAKE + fence.text.replace(ADDRESS, url)]
    elif is_run(fence):
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
        output, errors = running.communicate(timeout=PATIENCE_S)
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
    await eventually(lambda: httpx.get(f"{service.url}/readyz", timeout=PATIENCE_S).json().get("redis"))
    ran = 0
    for fence in fences(page):
        output = await run(fence, service.url, database, tmp_path)
        if output is None:
            continue
        ran += 1
        if fence.answer is not None:
            expected = normal(fence.answer.replace(ADDRESS, service.url))
            # A stream that was just closed takes a moment to give back what it held.
            deadline = time.monotonic() + PATIENCE_S
            while normal(output or "") != expected and only_reads(fence) and time.monotonic() < deadline:
                await asyncio.sleep(0.1)
                output = await run(fence, service.url, database, tmp_path)
            assert normal(output or "") == expected, fence
    assert ran


def test_every_fence_in_a_language_is_run_or_says_why_not() -> None:
    idle = [
        str(fence)
        for page in pages()
        for fence in fences(page.relative_to(ROOT).as_posix())
        if fence.language not in SHOWN and not fence.skipped
        if not (fence.page in PAGES and is_run(fence)) and fence.page not in SPARK_PAGES
    ]
    assert idle == []


def test_the_receiver_of_the_webhooks_page_takes_what_is_signed_once_and_refuses_the_rest() -> None:
    [fence] = [found for found in fences("docs/howto/webhooks.md") if found.language == "python"]
    handled: list[object] = []
    known: list[str] = []

    def seen(name: str) -> bool:
        known.append(name)
        return name in known[:-1]

    names: dict[str, Any] = {"seen": seen, "handle": lambda channel, data: handled.append((channel, data))}
    exec(compile(fence.text, str(fence), "exec"), names)
    body = b'{"channel": "orders.eu", "data": 1}'
    headers = signed("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYo=", "msg_1", int(time.time()), body)
    assert [names["receive"](body, headers) for _ in range(2)] == [200, 200]
    assert names["receive"](body + b" ", headers) == 401
    assert handled == [("orders.eu", 1)]
