"""Run the cases of the Autobahn test suite against the WebSocket connections of the service.

`python -m tests.websocket.autobahn` starts an echo server, and kosoku carries out the cases on it.
kosoku is installed into an environment of its own. Groups 9 (speed), 12 and 13 (compression) are left out.
Arguments are the cases to run, such as `6.*`. The exit code is 0 if all passed, 1 if one failed, and 2 if the
cases could not run. The report is in `load/results/autobahn/report`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from load.drill import RESULTS
from load.install import pypi, python_of
from tests.patience import PATIENCE_S
from tests.websocket.echo import EchoServer

NAME: Final = "autobahn"
VERSION: Final = "0.1.0"
PROOF: Final = f"from importlib.metadata import version; assert version('kosoku') == '{VERSION}'"
LEFT_OUT: Final = ("9.*", "12.*", "13.*")
PASSED: Final = {"OK", "NON-STRICT", "INFORMATIONAL"}
"""Non-strict: text that is not UTF-8 is refused once its message is complete, not at its first wrong byte.
Informational: the suite only looks at what happens."""


class Verdict(NamedTuple):
    """What became of the cases. `failed` has lines for a person to read."""

    passed: int
    failed: list[str]


def run(cases: Sequence[str] = ()) -> Verdict:
    """Run these cases, by default all that are not left out. Raises RuntimeError if they could not run."""
    pypi(NAME, [f"kosoku=={VERSION}"], PROOF)
    report = RESULTS / NAME / "report"
    shutil.rmtree(report, ignore_errors=True)
    chosen = [word for case in cases for word in ("-i", case)]
    left_out = [word for case in LEFT_OUT for word in ("-x", case)]
    with EchoServer() as server:
        options = [*chosen, *left_out, "-p", "4", "-o", str(report)]
        words = [str(python_of(NAME).with_name("kosoku")), *options, server.address]
        said = subprocess.run(words, capture_output=True, text=True, timeout=5 * PATIENCE_S)
    if not (report / "index.json").exists():
        raise RuntimeError(f"kosoku ended with {said.returncode} and no report:\n{said.stderr}")
    verdict = _verdict(report)
    if bool(verdict.failed) != bool(said.returncode):
        raise RuntimeError(f"kosoku ended with {said.returncode}, but reports {verdict}:\n{said.stderr}")
    return verdict


def _verdict(report: Path) -> Verdict:
    (results,) = json.loads((report / "index.json").read_text()).values()
    failed = [line for case, result in results.items() if (line := _failure(case, result))]
    return Verdict(len(results) - len(failed), failed)


def _failure(case: str, result: dict[str, Any]) -> str:
    behavior, close = result["behavior"], result["behaviorClose"]
    return "" if {behavior, close} <= PASSED else f"{case}: {behavior}, its close: {close}"


def main(cases: Sequence[str]) -> int:
    """Print the verdict and return the exit code."""
    try:
        verdict = run(cases)
    except (RuntimeError, subprocess.TimeoutExpired):
        traceback.print_exc()
        return 2
    for line in verdict.failed:
        print(line)
    print(f"{verdict.passed} passed, {len(verdict.failed)} failed")
    return 1 if verdict.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
