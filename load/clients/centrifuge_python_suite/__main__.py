"""`python -m load.clients.centrifuge_python_suite`: the own tests of the Python client of Centrifugo, run
against the service.

They come from the client's source distribution. Before they run, their text is changed in the places that
are printed. Each case passes, or has a reason in `reasons.py` for which it must still fail.
"""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop

from load import drill, install
from load.api import Api
from load.children import Child
from load.clients.centrifuge_python_suite.changes import changes, rewrite
from load.clients.centrifuge_python_suite.reasons import REASONS, judge, read, table
from load.drill import say
from load.server import serving
from load.verdict import NoVerdictError, Verdict
from load.waiting import PATIENCE_S, SLOWNESS, until

NAME: Final = "centrifuge-python"
VERSION: Final = "0.7.0"
PROOF: Final = f"from importlib.metadata import version; assert version('{NAME}') == '{VERSION}'"
FOLDER: Final = "centrifuge-python-suite"
CASES: Final = 213
"""This version has so many. Fewer would say nothing of those that are missing."""
SHORT_S: Final = 10 * SLOWNESS
"""The limit of cases that must fail. Some of them wait without an end for what never comes."""
SMALL_HISTORY: Final = {
    "pattern": "smallhistory.>",
    "applies_to": "channels",
    "definition": {"retention": {"max_messages": 2}},
}
ROUND_S: Final = "0.2"
"""Between rounds of retention, for which one test waits."""


def unpacked(source: Path, folder: Path) -> Path:
    """The tests of the source distribution, without the client beside them: they import the installed one."""
    with tarfile.open(source) as archive:
        archive.extractall(folder / "source", filter="data")
    [tests] = (folder / "source").glob("*/tests")
    return Path(shutil.move(tests, folder / "tests"))


async def run_cases(folder: Path) -> Path:
    """Run the tests. Returns the file with their results. Raises NoVerdictError if they did not end."""
    short = [(test, reason.text) for reason in REASONS for test in reason.tests]
    plan = json.dumps({"limit_s": PATIENCE_S, "short_limit_s": SHORT_S, "short": short})
    program = Path(__file__).with_name("cases.py")
    results = folder / "results.jsonl"
    words = [str(install.python_of(FOLDER)), str(program), str(folder), str(results), plan]
    child = Child(words, folder / "cases.log").start()
    try:
        await until(lambda: child.code() is not None, "the suite has ended", 15 * PATIENCE_S, every_s=0.5)
    finally:
        child.stop()
    if child.code() != 0:
        raise NoVerdictError(f"the suite ended with {child.code()}:\n{child.tail()}")
    return results


async def run(source: Path, folder: Path) -> Verdict:
    """Run the suite once, against a new service."""
    tests = unpacked(source, folder)
    async with serving(maintenance_interval=ROUND_S) as server:
        say(f"{NAME} {VERSION}; changed in its tests:")
        for line in rewrite(tests, changes(f"localhost:{server.port}")):
            say(line)
        api = Api(server.target)
        await api.call("PUT", "/v1/policies/smallhistory", SMALL_HISTORY)
        api.close()
        cases = read(await run_cases(folder))
    for line in table(cases):
        say(line)
    if len(cases) != CASES:
        raise NoVerdictError(f"there are {len(cases)} cases, not {CASES}")
    return judge(cases)


def main(arguments: Sequence[str] | None = None) -> int:
    """Install the client and its tests, and run them once."""
    parser = drill.parser("clients.centrifuge_python_suite", __doc__, "")
    drill.add_keep(parser)
    options = parser.parse_args(arguments)
    folder = drill.home(FOLDER)

    def play() -> Verdict:
        source = install.source(FOLDER, NAME, VERSION)
        install.pypi(FOLDER, [str(source)], PROOF)
        return uvloop.run(run(source, folder))

    verdict = drill.played(play)
    drill.leave(folder, FOLDER, verdict, keep=options.keep)
    return drill.conclude(verdict)


if __name__ == "__main__":
    sys.exit(main())
