"""One verdict for all drills: how it counts, prints and ends; and every drill is asked in one way."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from load import drill
from load.children import CHECKOUT
from load.sequence import check_sequence
from load.verdict import BROKEN, CLEAN, EXAMPLES, NO_VERDICT, USUAL, Breach, NoVerdictError, Verdict
from tests.patience import PATIENCE_S

DRILLS = [
    *("chat", "checker", "groups", "poison", "restart", "failover", "crashes", "soak", "timefuzz"),
    *(
        "transactions",
        "halfopen",
        "credentials",
        "browser",
        "clients",
        "bench",
        "spark.export",
        "spark.cold",
        "spark.sink",
    ),
    *("spark.readback", "spark.bench", "spark.analyze", "spark.memory"),
]


def broken(*examples: str) -> Verdict:
    verdict = Verdict()
    for example in examples:
        verdict.add(Breach.LOST, example)
    return verdict


def test_a_clean_verdict_names_what_was_looked_for() -> None:
    assert Verdict().line() == "clean: 0 lost, 0 doubled, 0 out of order"
    assert Verdict((Breach.LOST, Breach.HOLES)).line() == "clean: 0 lost, seq dense"
    assert Verdict(checked="9 messages").report() == "9 messages\nclean: 0 lost, 0 doubled, 0 out of order"


def test_a_breach_appears_though_nobody_looked_for_it() -> None:
    verdict = Verdict()
    verdict.add(Breach.HOLES, "c", 2)
    assert not verdict.ok
    assert verdict.line() == "BROKEN: 0 lost, 0 doubled, 0 out of order, 2 holes in seq"


def test_a_count_of_none_is_no_breach() -> None:
    verdict = Verdict()
    verdict.add(Breach.LOST, "nothing", 0)
    verdict.add(Breach.LOST, "less than nothing", -1)
    assert verdict.ok
    assert verdict.examples == {}


def test_examples_are_few_and_counts_are_whole() -> None:
    verdict = broken(*map(str, range(EXAMPLES + 3)))
    assert verdict.counts[Breach.LOST] == EXAMPLES + 3
    assert verdict.report().endswith("lost: … 3 more")


def test_verdicts_add_up() -> None:
    total = Verdict()
    for number in range(10):
        total.include(broken("a"), f"round {number}")
    assert total.line() == "BROKEN: 10 lost, 0 doubled, 0 out of order"
    assert total.examples[Breach.LOST] == [f"round {number}: a" for number in range(EXAMPLES)]


def test_a_verdict_comes_whole_from_another_process() -> None:
    verdict = broken("a", "b")
    assert Verdict.from_json(msgspec.json.decode(msgspec.json.encode(verdict.to_json()))) == verdict


def test_the_exit_code_says_clean_broken_or_no_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> Verdict:
        raise RuntimeError("the run went wrong")

    def disturbed() -> Verdict:
        raise NoVerdictError("something else ran")

    assert drill.conclude(drill.played(disturbed)) == NO_VERDICT
    assert capsys.readouterr().out == "no verdict: something else ran\n"
    assert drill.conclude(drill.played(Verdict)) == CLEAN == 0
    assert drill.conclude(drill.played(lambda: broken("a"))) == BROKEN == 1
    assert drill.conclude(drill.played(fails)) == NO_VERDICT == 2
    said = capsys.readouterr().out
    assert "no verdict" in said
    assert "the run went wrong" in said


@pytest.mark.parametrize(
    ("got", "counts"),
    [
        ([0, 1, 2, 3], (0, 0, 0)),
        ([0, 1, 3], (1, 0, 0)),
        ([0, 1, 1, 2, 3], (0, 1, 0)),
        ([0, 2, 1, 3], (0, 0, 1)),
        ([], (4, 0, 0)),
    ],
)
def test_a_reader_is_judged_by_the_numbers_it_got(got: list[int], counts: tuple[int, ...]) -> None:
    verdict = Verdict()
    check_sequence("reader", got, range(4), verdict)
    assert tuple(verdict.counts[breach] for breach in USUAL) == counts


def test_what_nobody_was_owed_is_a_phantom() -> None:
    verdict = Verdict()
    check_sequence("reader", [0, 1, 2, 9], range(3), verdict)
    assert verdict.counts == {Breach.PHANTOM: 1}


@pytest.mark.parametrize("name", DRILLS)
def test_every_drill_has_examples_and_says_what_its_exit_codes_mean(name: str) -> None:
    command = [sys.executable, "-m", f"load.{name}", "--help"]
    asked = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert asked.returncode == 0, asked.stderr
    assert f"examples:\n  python -m load.{name}" in asked.stdout
    assert "exit codes: 0 no breach; 1 a breach; 2 no verdict" in asked.stdout
