"""What a killed run leaves behind: nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from load.children import stat_of, tree
from tests import memory
from tests.conftest import Database, service_environment
from tests.patience import next_line, wait_until
from tests.support import ROOT

RUN = """
import json, sys, time
from tests.support import RunningService
print(RunningService(json.loads(sys.argv[1])).process.pid, flush=True)
time.sleep(1000)
"""


def is_gone(pid: int) -> bool:
    """Ended, though whoever inherited it may not have asked for its exit code yet."""
    return stat_of(pid)[:1] in ([], ["Z"])


def test_a_service_ends_with_a_killed_run(database: Database, redis_url: str, tmp_path: Path) -> None:
    environment = service_environment(database, redis_url, tmp_path)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "client"), str(ROOT / "pipeline")])
    with subprocess.Popen(
        [sys.executable, "-P", "-c", RUN, json.dumps(environment)],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        family = tree(int(next_line(run, run.stdout)))
        assert len(family) > 1, "a supervisor and its worker"
        run.kill()
    wait_until(lambda: all(is_gone(pid) for pid in family))


def test_what_a_killed_run_left_in_memory_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MEMORY", tmp_path)
    monkeypatch.setattr(memory, "ROOM_BYTES", 0)
    left = tmp_path / f"{memory.PREFIX}left"
    left.mkdir()
    with memory.folder_in_memory(tmp_path) as first, memory.folder_in_memory(tmp_path) as second:
        assert {*tmp_path.iterdir()} == {first, second}
    assert not any(tmp_path.iterdir())
    monkeypatch.setattr(memory, "ROOM_BYTES", 1 << 60)
    with memory.folder_in_memory(left) as elsewhere:
        assert elsewhere == left
