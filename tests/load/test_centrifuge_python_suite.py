"""The verdict on the own tests of the Python client of Centrifugo: what it finds, and that they run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from load import drill, install
from load.children import CHECKOUT
from load.clients.centrifuge_python_suite import cases as program
from load.clients.centrifuge_python_suite.changes import Change, rewrite
from load.clients.centrifuge_python_suite.reasons import REASONS, Case, Reason, judge, read, table
from load.verdict import Breach, NoVerdictError
from tests.patience import PATIENCE_S

JSON, PROTOBUF = "use_protobuf=False", "use_protobuf=True"
REASON = Reason("JSON only", PROTOBUF, "code: 3501", ("test_a.A.test_both",))
FINE = Case("test_a.A.test_both", JSON, "passed")
KNOWN = Case("test_a.A.test_both", PROTOBUF, "failed", "timeout", "connection closed, code: 3501")
OTHER = Case("test_a.A.test_other", "", "passed")


def test_what_fails_for_its_reason_is_no_breach() -> None:
    verdict = judge([FINE, KNOWN, OTHER], [REASON])
    assert (verdict.ok, drill.conclude(verdict)) == (True, 0)
    assert table([FINE, KNOWN, OTHER], [REASON]) == [
        "1 failed, 2 passed",
        "1 for this reason: JSON only",
        f"    test_a.A.test_both {PROTOBUF}",
        "0 without a reason",
    ]


@pytest.mark.parametrize(
    ("cases", "breach"),
    [
        ([FINE, KNOWN, OTHER._replace(outcome="failed")], Breach.FAILED),
        ([FINE, KNOWN, OTHER._replace(outcome="skipped")], Breach.FAILED),
        ([FINE._replace(outcome="failed"), KNOWN, OTHER], Breach.FAILED),
        ([FINE, KNOWN._replace(said="connection closed, code: 3004"), OTHER], Breach.FAILED),
        ([FINE, KNOWN._replace(outcome="passed"), OTHER], Breach.STALE),
        ([FINE, OTHER], Breach.STALE),
    ],
    ids=["another", "skipped", "the other half", "another reason", "passes", "is gone"],
)
def test_each_planted_breach_is_found(cases: list[Case], breach: Breach) -> None:
    verdict = judge(cases, [REASON])
    assert dict(verdict.counts) == {breach: 1}
    assert drill.conclude(verdict) == 1


def test_a_case_has_one_reason() -> None:
    for reason in REASONS:
        for test in reason.tests:
            case = Case(test, f"delta=None {reason.text}", "failed")
            assert [other for other in REASONS if other.covers(case)] == [reason]


def test_a_change_with_another_number_of_places_is_told(tmp_path: Path) -> None:
    file = tmp_path / "test_a.py"
    file.write_text("one(token=1)\ntwo(token=1)\n")
    change = Change("tokens", "test_a.py", r"token=\d", "", 2)
    assert rewrite(tmp_path, [change]) == ["  2 in test_a.py: tokens"]
    assert file.read_text() == "one()\ntwo()\n"
    with pytest.raises(NoVerdictError, match=r"tokens: 0 places in test_a\.py, not 2"):
        rewrite(tmp_path, [change])


def test_a_source_that_cannot_be_had_is_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setattr(install, "RESULTS", tmp_path)
    python = install.python_of("here")
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\necho again >> {calls}\nexit 1\n")
    python.chmod(0o700)
    with pytest.raises(NoVerdictError, match="no network"):
        install.source("here", "package", "1.0")
    assert calls.read_text().split() == ["again"] * 3


SUITE = """
import asyncio
import logging
import unittest

log = logging.getLogger("centrifuge")


class Plain(unittest.TestCase):
    def test_passes(self):
        pass

    def test_fails(self):
        log.debug("before it failed")
        self.assertEqual(1, 2)

    @unittest.skip("not here")
    def test_is_skipped(self):
        pass


class Halves(unittest.IsolatedAsyncioTestCase):
    async def test_halves(self):
        for use_protobuf in (False, True):
            with self.subTest(use_protobuf=use_protobuf):
                log.debug("half %s", use_protobuf)
                if use_protobuf:
                    await asyncio.Event().wait()

    async def test_after(self):
        await asyncio.sleep(0)
"""


def test_each_case_is_written_also_after_one_that_never_ends(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(SUITE)
    (tmp_path / "tests" / "test_b.py").write_text("import nothing_of_this_name\n")
    short = {"limit_s": PATIENCE_S, "short_limit_s": 0.1, "short": [["test_a.Halves.test_halves", PROTOBUF]]}
    results = tmp_path / "results.jsonl"
    words = [sys.executable, program.__file__, str(tmp_path), str(results), json.dumps(short)]
    subprocess.run(words, check=True, timeout=PATIENCE_S)
    found = {str(case): case for case in read(results)}
    assert {name: case.outcome for name, case in found.items()} == {
        "test_a.Plain.test_passes": "passed",
        "test_a.Plain.test_fails": "failed",
        "test_a.Plain.test_is_skipped": "skipped",
        f"test_a.Halves.test_halves {JSON}": "passed",
        f"test_a.Halves.test_halves {PROTOBUF}": "failed",
        "test_a.Halves.test_after": "passed",
        "unittest.loader._FailedTest.test_b": "failed",
    }
    late = found[f"test_a.Halves.test_halves {PROTOBUF}"]
    assert (late.why, late.said) == ("no end within 0.1 s", "half True")
    failed = found["test_a.Plain.test_fails"]
    assert "AssertionError: 1 != 2" in failed.why
    assert failed.said == "before it failed"


@pytest.mark.drill
def test_the_suite_passes_but_for_its_reasons() -> None:
    command = [sys.executable, "-m", "load.clients.centrifuge_python_suite"]
    done = subprocess.run(
        command, cwd=CHECKOUT, capture_output=True, text=True, timeout=20 * PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
