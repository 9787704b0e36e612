"""Runs the tests of a folder, and writes what became of each case: `cases.py FOLDER RESULTS PLAN`.

It runs in the environment of the foreign suite, so it needs the standard library only. A case is a test, or
one of its subtests. `PLAN` is JSON: `limit_s`, and `short_limit_s` for the cases in `short`, which are pairs
of a test's name and a text in its parameters. A case that takes longer is cancelled.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import os
import sys
import time
import traceback
import unittest
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOGGER = "centrifuge"
MAX_SAID = 20_000
LOOK_S = 0.1


class Current(logging.Handler):
    """The case that runs: its name, its parameters, its time, and what the client logged in it."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        super().__init__()
        self._plan = plan
        self.begin("", {})

    def begin(self, test: str, parameters: Mapping[Any, Any]) -> None:
        """A case begins."""
        self.test = test
        self.parameters = " ".join(f"{name}={value}" for name, value in sorted(parameters.items()))
        self.said: list[str] = []
        short = any(test == name and text in self.parameters for name, text in self._plan["short"])
        self.limit_s = float(self._plan["short_limit_s" if short else "limit_s"])
        self.ends = time.monotonic() + self.limit_s

    def is_late(self) -> bool:
        """Whether its time is over. It then gets the same time again, to end."""
        if time.monotonic() < self.ends:
            return False
        self.ends = time.monotonic() + self.limit_s
        return True

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


class Record(unittest.TestResult):
    """Writes a line of JSON for each case."""

    def __init__(self, current: Current, results: Path) -> None:
        super().__init__()
        self._current = current
        self._results = results.open("w")
        self._had_subtests = False

    def close(self) -> None:
        """All cases are written."""
        self._results.close()

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802 (unittest's name)
        super().startTest(test)
        self._had_subtests = False
        self._current.begin(test.id(), {})

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        if not self._had_subtests:
            self._write("passed", "")

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        # What fails before a test has a name of its own, such as a module that cannot be imported.
        self._current.test = test.id()
        self._write("failed", self._text(err))

    addFailure = addError  # noqa: N815

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self._current.test = test.id()
        self._write("skipped", reason)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self._had_subtests = True
        self._write("failed" if err else "passed", self._text(err) if err else "")

    def _text(self, error: Any) -> str:
        if isinstance(error[1], asyncio.CancelledError):
            return f"no end within {self._current.limit_s:g} s"
        return "".join(traceback.format_exception(*error))

    def _write(self, outcome: str, why: str) -> None:
        current = self._current
        case = {"test": current.test, "parameters": current.parameters, "outcome": outcome}
        said = "\n".join(current.said)[-MAX_SAID:]
        self._results.write(json.dumps({**case, "why": why[-MAX_SAID:], "said": said}) + "\n")
        self._results.flush()


def watch_subtests(current: Current) -> None:
    """Tell `current` of each subtest."""
    of_unittest = unittest.TestCase.subTest

    @contextmanager
    def sub_test(self: unittest.TestCase, *words: Any, **parameters: Any) -> Iterator[None]:
        current.begin(self.id(), parameters)
        with of_unittest(self, *words, **parameters):
            yield

    unittest.TestCase.subTest = sub_test  # type: ignore[method-assign]


def limited(
    method: Callable[[], Coroutine[Any, Any, None]], current: Current
) -> Callable[[], Coroutine[Any, Any, None]]:
    """The test with the limits of its cases. After a subtest that was cancelled the next one begins."""

    @functools.wraps(method)
    async def run() -> None:
        task = asyncio.ensure_future(method())
        while not (await asyncio.wait({task}, timeout=LOOK_S))[0]:
            if current.is_late():
                task.cancel()
        task.result()

    return run


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    """All tests of a suite."""
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from tests_of(part)
        else:
            yield part


def main(folder: str, results: str, plan: str) -> None:
    """Run the tests of `FOLDER/tests`."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    current = Current(json.loads(plan))
    watch_subtests(current)
    suite = unittest.defaultTestLoader.discover("tests")
    logger = logging.getLogger(LOGGER)
    logger.setLevel(logging.DEBUG)
    logger.addHandler(current)
    for test in tests_of(suite):
        name = getattr(test, "_testMethodName", "")
        method = getattr(test, name, None)
        if inspect.iscoroutinefunction(method):
            setattr(test, name, limited(method, current))
    record = Record(current, Path(results))
    suite.run(record)
    record.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
