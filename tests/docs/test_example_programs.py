"""The programs of `examples/` do what they say. tests/docs/test_chat.py has the chat."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from tests.conftest import Database, Serve
from tests.patience import PATIENCE_S
from tests.support import ROOT

EXAMPLES = ROOT / "examples"


def environment(url: str, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "client"), "GAPLESS_URL": url, **more}


def run(program: str, url: str, **more: str) -> str:
    """What it printed."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / program],
        env=environment(url, **more),
        capture_output=True,
        text=True,
        timeout=5 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.drill
def test_a_job_that_kills_its_worker_becomes_a_dead_letter_and_the_others_are_done(server_url: str) -> None:
    done, dead, why = run("crashing_worker.py", server_url).splitlines()
    assert done.startswith("19 jobs are done, by workers that lived ")
    assert dead.startswith("job 7 is a dead letter: max_deliver after ")
    assert why.startswith("of which 3 count: "), "there may be more attempts than max_deliver"


async def test_an_order_and_its_event_are_both_there_or_neither(serve: Serve, database: Database) -> None:
    url = serve().url
    engine = database.owner_url.replace("postgresql://", "postgresql+asyncpg://", 1)
    told = await asyncio.to_thread(run, "outbox.py", url, DATABASE_URL=engine)
    assert told.splitlines() == [
        "the teapot is not ordered: the card was refused",
        "orders: a kettle",
        "events: a kettle",
    ]
