"""The checker of durable subscriptions must pass every clean run and find each planted mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from load.groups.checker import check
from load.groups.history import SECOND, Delivery, Fault, Group, Groups, Message, Publish, Request, Session
from load.history import Outcome
from load.verdict import Breach, Verdict
from tests.load.groups_model import Bug
from tests.load.groups_sample import play

ENOUGH = 2
"""A mistake made only once may hide behind an answer that was lost at the same moment."""


@pytest.mark.parametrize(
    "seed", [*range(10), *[pytest.param(n, marks=pytest.mark.drill) for n in range(10, 40)]]
)
@pytest.mark.parametrize("releases", [False, True])
def test_a_clean_run_passes(seed: int, releases: bool) -> None:
    run, _ = play(seed, releases=releases)
    verdict = check(run)
    assert not run.stuck
    assert verdict.ok, verdict.report()
    assert verdict.exit_code == 0


def _find(bug: Bug, seeds: range) -> int:
    """Play the bug on each seed; on how many it was at work. All of those must be flagged, by name."""
    applied = 0
    for seed in seeds:
        run, made = play(seed, bug)
        if made < ENOUGH:
            continue
        applied += 1
        verdict = check(run)
        assert any(verdict.counts[breach] for breach in bug.breaches), f"seed {seed}: {verdict.report()}"
        assert verdict.exit_code == 1
    return applied


@pytest.mark.parametrize("bug", list(Bug), ids=lambda bug: bug.name.lower())
def test_every_planted_mistake_is_found_and_named(bug: Bug) -> None:
    assert _find(bug, range(10)) > 0


@pytest.mark.drill
@pytest.mark.parametrize("bug", list(Bug), ids=lambda bug: bug.name.lower())
def test_every_planted_mistake_is_found_on_more_seeds(bug: Bug) -> None:
    assert _find(bug, range(10, 25)) > 0


def _small() -> Groups:
    """Two messages of one key, both delivered once and acked."""
    run = Groups(groups={"q": Group("q", ("c",))})
    run.sessions[1] = Session(1, "q", "m", True, 2, 0, told=True)
    for n in (1, 2):
        at = n * SECOND
        run.messages.append(Message(n, "c", n, "k", at - SECOND // 2, n))
        run.publishes.append(Publish(n, "c", Outcome.OK, n))
        run.deliveries.append(Delivery("q", 1, n, "c", n, "k", 1, f"r{n}", at + 2 * SECOND, at))
        run.requests.append(Request("ack", "q", f"r{n}", at + 1000, at + 2000, Outcome.OK, "acked"))
    return run


def _broken(verdict: Verdict) -> set[Breach]:
    return {breach for breach, count in verdict.counts.items() if count}


def test_the_small_run_is_clean() -> None:
    assert check(_small()).ok


def test_a_message_that_nobody_published_is_a_phantom() -> None:
    run = _small()
    run.deliveries[0] = replace(run.deliveries[0], seq=7)
    assert Breach.PHANTOM in _broken(check(run))


def test_a_message_of_a_channel_not_asked_for_is_a_phantom() -> None:
    run = _small()
    run.messages.append(Message(3, "d", 1, None, SECOND, 3))
    run.deliveries.append(Delivery("q", 1, 3, "d", 1, None, 1, "r3", 5 * SECOND, 3 * SECOND))
    assert _broken(check(run)) == {Breach.PHANTOM}


def test_a_confirmed_message_that_is_not_in_the_log_is_lost() -> None:
    run = _small()
    run.publishes.append(Publish(3, "c", Outcome.OK, 3))
    assert _broken(check(run)) == {Breach.LOST}


def test_an_ack_without_an_answer_may_have_been_stored_or_not() -> None:
    run = _small()
    run.requests[1] = replace(run.requests[1], outcome=Outcome.INFO, status="", answered_ns=None)
    assert check(run).ok
    again = replace(run.deliveries[1], attempt=2, receipt="r9", at_ns=4 * SECOND, deadline_ns=6 * SECOND)
    run.deliveries.append(again)
    assert _broken(check(run)) == {Breach.LOST}
    run.stuck = ["q"]
    assert check(run).ok


def test_an_ack_that_was_refused_as_a_whole_settles_nothing() -> None:
    run = _small()
    run.requests[1] = replace(run.requests[1], outcome=Outcome.FAIL, status="")
    assert _broken(check(run)) == {Breach.LOST}


def test_an_unseen_attempt_is_forgiven_only_where_somebody_may_have_lost_sight() -> None:
    run = _small()
    run.deliveries[1] = replace(run.deliveries[1], attempt=2)
    assert _broken(check(run)) == {Breach.ATTEMPTS}
    run.faults.append(Fault("worker", 2 * SECOND - 100, 2 * SECOND))
    assert check(run).ok
    run.faults[0] = replace(run.faults[0], hides=False)
    assert not check(run).ok


@pytest.mark.parametrize(
    ("status", "outcome", "allowed"),
    [("released", Outcome.OK, {1}), ("nacked", Outcome.OK, {2}), ("", Outcome.INFO, {1, 2})],
)
def test_what_was_released_has_the_same_attempt_again(
    status: str, outcome: Outcome, allowed: set[int]
) -> None:
    """Without an answer either may be."""
    for attempt in (1, 2):
        run = _small()
        kind = "nack" if status == "nacked" else "release"
        run.requests[1] = replace(run.requests[1], kind=kind, status=status, outcome=outcome)
        at = 3 * SECOND
        again = replace(
            run.deliveries[1], attempt=attempt, receipt="r9", at_ns=at, deadline_ns=at + 2 * SECOND
        )
        run.deliveries.append(again)
        run.requests.append(Request("ack", "q", "r9", at + 1000, at + 2000, Outcome.OK, "acked"))
        assert _broken(check(run)) == (set() if attempt in allowed else {Breach.ATTEMPTS})


def test_an_unanswered_pull_may_have_been_given_something() -> None:
    run = _small()
    run.deliveries[1] = replace(run.deliveries[1], attempt=2)
    run.sessions[2] = Session(2, "q", "n", False, 1, SECOND, 2 * SECOND)
    assert check(run).ok
    run.sessions[2].told = True
    assert _broken(check(run)) == {Breach.ATTEMPTS}


def test_a_later_message_must_wait_for_the_earlier_one_of_its_key() -> None:
    run = _small()
    run.requests[0] = replace(run.requests[0], asked_ns=2 * SECOND + 1, answered_ns=2 * SECOND + 2)
    assert _broken(check(run)) == {Breach.OUT_OF_ORDER}
    run.groups["q"] = replace(run.groups["q"], ordering="none")
    assert check(run).ok


def test_the_report_names_counts_and_examples() -> None:
    run = _small()
    run.requests.pop()
    report = check(run).report()
    assert "1 lost, 0 redelivered after an ack" in report
    assert "lost: q: 2 (attempt 1 in session 1 (unsettled))" in report
