"""What the benchmarks of queues make of what they see, and the crews they measure with, as real processes."""

from __future__ import annotations

import math
import sys

import pytest

from db.queries import load
from load.bench.queue import rates
from load.bench.queue.bare import ACK, CLAIM
from load.bench.queue.crew import Word as Said
from load.bench.queue.crew import crew
from load.bench.queue.ours import Work
from load.bench.queue.rivals import spread
from load.bench.queue.samples import Look, Phases, Record, largest, pin_now
from load.figure import Word, quantile
from load.postgres import blocks
from tests.patience import PATIENCE_S

BEGIN = (
    "import time; from load.bench.queue.concurrent_start import ConcurrentStart;"
    " start = ConcurrentStart(); start.wait(); "
)


def child(code: str) -> list[str]:
    return [sys.executable, "-c", BEGIN + code]


async def test_a_crew_starts_at_one_moment_and_reports() -> None:
    said: list[Said] = []
    told = "start.say({'acked': 3}); start.say({'done': 3, 'end': time.monotonic()})"
    async with crew([child(told), child(told)], lambda _, word: said.append(word)) as workers:
        started = workers.go()
        reports = await workers.reports(PATIENCE_S)
    assert [report["done"] for report in reports] == [3, 3]
    assert all(report["end"] > started for report in reports)
    assert said == [{"acked": 3}, {"acked": 3}]


async def test_a_crew_that_works_until_told_to_stop() -> None:
    async with crew([child("start.wait_for_stop(); start.say({'done': 1})")]) as workers:
        workers.go()
        workers.stop()
        assert await workers.reports(PATIENCE_S) == [{"done": 1}]


async def test_a_child_that_fails_fails_the_measurement() -> None:
    async with crew([child("raise SystemExit('no such queue')"), child("start.wait_for_stop()")]) as workers:
        workers.go()
        with pytest.raises(RuntimeError, match="no such queue"):
            await workers.reports(PATIENCE_S)


async def test_no_child_outlives_its_crew() -> None:
    async with crew([child("time.sleep(600)")]) as workers:
        workers.go()
        assert workers.running()
    assert not workers.running()


@pytest.mark.parametrize(
    ("members", "shares"), [(1, [1]), (2, [1, 1]), (4, [2, 2]), (5, [3, 2]), (16, [8, 8])]
)
def test_members_are_spread_over_a_process_a_core(members: int, shares: list[int]) -> None:
    assert spread(members) == shares


def test_own_keys_differ_and_few_keys_come_back() -> None:
    own = Work("", "key", 1500).body(1000)
    assert own.count(b'"key"') == 500
    assert b'"k1499"' in own
    few = Work("", "key", 1500, keys=100).body(1000)
    assert few.count(b'"k7"') == 5


def test_statements_are_split_at_their_names() -> None:
    assert blocks("-- name: a\nselect 1\n\n-- name: b\n-- $1 x.\nselect 2\n") == {
        "a": "select 1",
        "b": "-- $1 x.\nselect 2",
    }


def test_the_bare_loop_runs_what_the_service_runs() -> None:
    assert load()["claim"].endswith(f"\n{CLAIM}")
    assert load()["ack"] == ACK


def rounds(ours: float, pgqueuer: float, bare: float) -> rates.Rates:
    made: rates.Rates = {}
    for members in rates.MEMBERS:
        for work in rates.WORKS:
            made[work.name, members] = [ours * members**0.5] * 2
        made["pgqueuer", members] = [pgqueuer] * 2
        made["procrastinate", members] = [pgqueuer / 10] * 2
    for work in rates.WORKS:
        made[work.name, 0] = [bare] * 2
    return made


def test_only_the_best_without_order_must_reach_the_bare_loop() -> None:
    figures = {figure.name: figure for figure in rates.figures(rounds(100, 30, 500), {}, "")}
    assert figures["queue, no order, best"].score == pytest.approx(0.8)
    assert figures["queue, no order, best"].word is Word.PASS
    shown = [figure for name, figure in figures.items() if name.endswith(" 1") or "keys" in name]
    assert shown
    assert all(figure.goal == math.inf and figure.word is Word.PASS for figure in shown)


def test_each_rival_is_met_with_as_many_members() -> None:
    figures = {figure.name: figure for figure in rates.figures(rounds(80, 30, 500), {}, "")}
    assert figures["queue, 1, pgqueuer"].word is Word.SHORT
    assert figures["queue, 4, pgqueuer"].word is Word.PASS
    assert figures["queue, 1, procrastinate"].word is Word.PASS


def test_a_quantile_is_a_value_that_was_there() -> None:
    assert quantile([5, 1, 3], 0.5) == 3
    assert quantile([5, 1, 3], 0.99) == 5
    assert quantile(list(range(1, 101)), 0.99) == 99
    assert math.isnan(quantile([], 0.5))


def test_the_pin_lies_in_the_middle_of_the_run() -> None:
    assert not pin_now(elapsed=5, acked=5_000, messages=100_000, pin_s=20, warm_s=5)
    assert not pin_now(elapsed=39, acked=39_000, messages=100_000, pin_s=20, warm_s=5)
    assert pin_now(elapsed=40, acked=40_000, messages=100_000, pin_s=20, warm_s=5)
    assert not pin_now(elapsed=60, acked=0, messages=100_000, pin_s=20, warm_s=5)


def recorded() -> Record:
    """A run of 100 s, 1,000 messages a second, pinned from 40 to 60: slow and large while it lasted."""
    record = Record()
    for at in range(100):
        pinned = 40 <= at < 60
        record.pulls += [(at + n / 20, 50.0 if pinned else 10.0 + at / 10) for n in range(20)]
        size = 2**20 * (30 if pinned else 2)
        record.looks.append(Look(at, {"deliveries": size, "kept": 8192}, 7 if pinned else 1, at * 1000))
    return record


def test_a_run_is_cut_where_the_pin_was() -> None:
    phases = Phases(recorded(), warm_s=5, begun=40, ended=60, stop=100, smallest=0)
    assert phases.before == (5, 40)
    assert phases.after == (60, 100)
    assert phases.p99_ms() == (13.9, 50.0, 19.9)
    assert phases.rates() == (1000, 1000)
    assert phases.start_bytes() == 2**21 + 8192
    assert phases.peak_bytes() == 30 * 2**20 + 8192
    assert phases.most_bytes(4, 32) == 4 * (2**21 + 8192)
    assert phases.most_bytes(400, 32) == 32 * 2**20


def test_the_window_after_has_all_the_pin_clients_of() -> None:
    phases = Phases(recorded(), warm_s=5, begun=70, ended=71, stop=100, smallest=0)
    assert phases.before == (10, 70)
    assert phases.after[0] == 71


def test_a_few_pages_are_no_order_of_magnitude() -> None:
    phases = Phases(recorded(), warm_s=5, begun=40, ended=60, stop=100, smallest=2**23)
    assert phases.start_bytes() == 2**23


def test_what_was_seen_is_kept_by_the_second() -> None:
    series = recorded().series()
    assert len(series) == 100
    assert series[51] == {
        "at": 51,
        "acked": 51_000,
        "p50_ms": 50.0,
        "p99_ms": 50.0,
        "dead": 7,
        "bytes": {"deliveries": 30 * 2**20, "kept": 8192},
    }


def test_the_largest_tables_are_named() -> None:
    assert largest({"a": 2**20, "b": 2**21, "c": 0, "d": 2**19}) == "b 2.00, a 1.00, d 0.50"
