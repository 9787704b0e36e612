"""A pytest plugin: how a run ended, for who reads it later, and which tests share a process.

`GAPLESS_TEST_RECORDS` names a folder. `tests.jsonl` there gets a line for each failure at once, and at its
end one for each of the 50 slowest phases. `files.tsv` gets the seconds of each test file, the slowest first.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.patience import SLOWNESS

SLOWEST = 50
TESTS = Path(__file__).resolve().parent


class Records:
    """Collects what the tests report, and writes it down at the end of the run."""

    def __init__(self, folder: Path, limit_s: float) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._limit_s = limit_s
        self._phases: list[dict[str, Any]] = []
        self._files: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest for each phase of each test."""
        phase = {
            "test": report.nodeid,
            "phase": report.when,
            "seconds": round(report.duration, 3),
            "limit": self._limit_s,
            "outcome": report.outcome,
        }
        self._files[report.nodeid.partition("::")[0]] += report.duration
        self._phases.append(phase)
        if report.failed:
            self._write({**phase, "error": report.longreprtext[-4000:]})

    def pytest_sessionfinish(self) -> None:
        """Called by pytest at the end."""
        self._write(*sorted(self._phases, key=lambda phase: -phase["seconds"])[:SLOWEST])
        by_time = sorted(((seconds, name) for name, seconds in self._files.items()), reverse=True)
        with (self._folder / "files.tsv").open("a") as out:
            out.writelines(f"{seconds:.1f}\t{name}\n" for seconds, name in by_time)

    def _write(self, *lines: dict[str, Any]) -> None:
        with (self._folder / "tests.jsonl").open("a") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give a slow machine more time for each test. Record where all results come together."""
    if config.option.timeout is None:
        config.option.timeout = float(config.getini("timeout") or 0) * SLOWNESS
    folder = os.environ.get("GAPLESS_TEST_RECORDS")
    if folder and "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Records(Path(folder), config.option.timeout))


def with_spark() -> set[str]:
    """The test files that start a Spark session. One test process runs them all, so that one session serves
    them."""
    files = (path for path in TESTS.rglob("test_*.py") if "mark.spark" in path.read_text())
    return {path.relative_to(TESTS.parent).as_posix() for path in files}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of a file share a process, and so do all files with Spark."""
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    together = with_spark()

    class ByFile(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "spark" if file in together else file

    return ByFile(config, log)


LONG = ("tests/repo/test_launcher.py", "tests/integration/test_ways.py")
"""Files that take a minute: begun last, they would leave the other test processes without work."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with Spark: no other process has as much to do in one piece. Then come the long files."""
    together = with_spark()
    ranks = dict.fromkeys(LONG, 1) | dict.fromkeys(together, 0)
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], 2))
