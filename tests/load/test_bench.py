"""What the benchmarks make of their measurements, and the readers they measure with, over real sockets."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from load.bench import faces, fanout, latency, pairs
from load.bench.__main__ import judge
from load.bench.herd import COUNTER, caused
from load.children import CHECKOUT
from load.figure import Figure, UnfitError, Word, versus
from load.verdict import BROKEN, CLEAN, NO_VERDICT, NoVerdictError
from tests.load.fake_service import FakeService


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of publishing goes on by 10 ms with each look at the clock, so each run publishes as much."""
    clock = SimpleNamespace(perf_counter=itertools.count(0.0, 0.01).__next__)
    monkeypatch.setattr(fanout, "time", clock)


def test_a_figure_is_the_median_of_the_rounds_ratios() -> None:
    figure = versus("x", "1/s", [(10, 5), (30, 10), (8, 8)], 1.5, "")
    assert (figure.score, figure.word) == (2.0, Word.PASS)
    assert versus("x", "1/s", [(10, 10)], 1.5, "").word is Word.SHORT


def test_less_can_be_better() -> None:
    assert Figure("x", 3, None, "ms", 3, 2, False, "").word is Word.SHORT
    assert Figure("x", 2, None, "ms", 2, 2, False, "").word is Word.PASS


def test_a_goal_that_is_missed_on_a_disturbed_machine_is_no_verdict() -> None:
    met, missed = (Figure("x", ours, None, "ms", ours, 2, False, "") for ours in (2, 3))
    with pytest.raises(NoVerdictError, match="other programs used the machine"):
        judge([met, missed], [met], [])
    assert judge([met, missed], [met, missed], []).exit_code == BROKEN
    assert judge([missed, missed], [missed], ["queue failed"]).exit_code == BROKEN
    assert judge([met, met], [], []).exit_code == CLEAN, "a disturbance makes nothing faster"
    with pytest.raises(NoVerdictError, match="queue failed"):
        judge([met], [met], ["queue failed"])


@pytest.mark.usefixtures("steps")
async def test_a_burst_counts_what_every_reader_got() -> None:
    async with FakeService(cuts=False).running() as service:
        burst = await fanout.burst(faces.gapless(service.target), "c", readers=5, seconds=1.0)
        assert burst.published == len(service.log) > 0


@pytest.mark.usefixtures("steps")
async def test_a_burst_with_a_lost_message_is_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "DRAIN_PATIENCE", 0.5)
    async with FakeService("lose", cuts=False, spoilt_id=1).running() as service:
        with pytest.raises(UnfitError):
            await fanout.burst(faces.gapless(service.target), "c", readers=3, seconds=0.2)


async def test_latency_is_measured_to_the_last_reader() -> None:
    began = time.perf_counter()
    async with FakeService(cuts=False).running() as service:
        board = await latency.measure(faces.gapless(service.target), "c", seconds=0.2)
    took_ms = 1000 * (time.perf_counter() - began)
    assert 0 < board.quantile(0.5) <= board.quantile(0.99) < took_ms


def test_queries_are_read_from_the_metrics_by_label() -> None:
    text = '# TYPE x counter\ngapless_db_queries_total{query="history"} 4.0\nother{query="x"} 1.0\n'
    assert COUNTER.findall(text) == [('query="history"', "4.0")]


def test_only_queries_that_the_herd_caused_are_counted() -> None:
    spent = {
        'query="tick"': 90.0,
        'query="heads"': 3.0,
        'query="purge_rows"': 1.0,
        'query="page_channel"': 4.0,
    }
    assert caused(spent, seconds=2.0) == 4.0
    assert caused(spent, seconds=0.5) == 5.5


def test_pairs_are_judged_by_the_median_of_their_ratios() -> None:
    def turn(milliseconds: float, service_s: float, all_s: float) -> Any:
        return pairs.Turn({"x": milliseconds}, 1), SimpleNamespace(service_s=service_s, all_s=all_s)

    measured = [
        (turn(9, 1.0, 2.0), turn(10, 1.0, 2.0)),
        (turn(30, 1.1, 2.2), turn(10, 1.0, 2.0)),
        (turn(10.2, 1.2, 2.0), turn(10, 1.0, 2.0)),
    ]
    kind = pairs.Kind(pairs.KINDS["latency"].measure, "ms", more=False)
    figures = pairs.figures_of(kind, measured, speed=0.97, cpu=1.03)
    assert [(f.name, round(f.score, 3), f.word) for f in figures] == [
        ("x", 1.02, Word.PASS),
        ("x, CPU of the service", 1.1, Word.SHORT),
        ("x, CPU with databases", 1.0, Word.PASS),
    ]
    assert pairs.figures_of(kind, measured, speed=0.99, cpu=1.03)[0].word is Word.SHORT


def test_pairs_with_a_folder_that_is_no_checkout_have_no_verdict(tmp_path: Path) -> None:
    assert pairs.main([str(tmp_path)]) == NO_VERDICT


@pytest.mark.drill
def test_a_checkout_is_compared_with_itself(capsys: pytest.CaptureFixture[str]) -> None:
    kinds = [word for kind in pairs.KINDS for word in ("--only", kind)]
    assert pairs.main([str(CHECKOUT), "--pairs", "1", "--speed", "0.01", "--cpu", "100", *kinds]) == CLEAN
    assert capsys.readouterr().out.count("pair 1: ") == len(pairs.KINDS)
