"""When to claim, when a pull ends, when to sweep: whatever is told, in whatever order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from subscriptions.domain.claiming import SETTLE_S, WATCH_S, ClaimSchedule, pull_ends
from subscriptions.domain.sweeping import SWEEP_S, SweepSchedule

IDS = st.integers(0, 1000)
SECONDS = st.floats(0, 5)


class Claiming(RuleBasedStateMachine):
    """A group that is told things, and time that passes."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = ClaimSchedule()
        self.now = 100.0
        self.settled = self.claimed_to = self.hinted = 0
        self.claimed_at = self.swept_at = float("-inf")
        self.ends: list[float] = []

    @rule(last_id=IDS)
    def hear(self, last_id: int) -> None:
        self.schedule.hear(last_id)
        self.hinted = max(self.hinted, last_id)

    @rule(last_id=IDS, comes_meanwhile=st.booleans())
    def come(self, last_id: int, comes_meanwhile: bool) -> None:
        self.schedule.come()
        comers = self.schedule.comers
        if comes_meanwhile:
            self.schedule.come()
        self.schedule.seen(comers, last_id)
        self.hinted = max(self.hinted, last_id)
        if comes_meanwhile:
            self.schedule.seen(self.schedule.comers, last_id + 1)
            self.hinted = max(self.hinted, last_id + 1)

    @rule(by=IDS)
    def settle(self, by: int) -> None:
        self.settled += by

    @rule(seconds=SECONDS)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(in_s=SECONDS)
    def pull(self, in_s: float) -> None:
        self.ends.append(self.now + in_s)

    @rule(due_in_s=st.none() | st.floats(-1, 10), more=st.booleans())
    def claim(self, due_in_s: float | None, more: bool) -> None:
        self.schedule.claimed(self.settled, self.now, due_in_s, more=more)
        self.claimed_to, self.claimed_at = self.settled, self.now
        assert self.schedule.claim_due(self.settled, self.now, woken=False) is more
        if due_in_s is not None:
            at = self.now + max(WATCH_S, due_in_s) + 1e-6
            assert self.schedule.claim_due(self.settled, at, woken=False)

    @rule()
    def fail(self) -> None:
        self.schedule.claim_at_once()
        assert self.schedule.claim_due(self.settled, self.now, woken=False)

    @rule(whole=st.booleans())
    def sweep(self, whole: bool) -> None:
        if whole:
            self.schedule.sweep_whole()
            assert self.schedule.sweep_due(self.now)
        assert self.schedule.sweep(self.now) is (whole or self.swept_at == float("-inf"))
        self.swept_at = self.now
        assert not self.schedule.sweep_due(self.now)
        assert self.schedule.sweep_due(self.now + SWEEP_S + 1e-6)

    @invariant()
    def nobody_sleeps_through_anything(self) -> None:
        pause_s = self.schedule.pause_s(self.settled, self.now, self.ends)
        assert 0.0 <= pause_s <= SWEEP_S
        if self.hinted > self.settled:
            assert pause_s <= WATCH_S, "the watermark is watched until it passes what was told of"
        for end in self.ends:
            assert pause_s <= max(WATCH_S, end - self.now), "a pull is answered when its time is over"

    @invariant()
    def what_is_settled_or_told_is_claimed(self) -> None:
        assert self.schedule.claim_due(self.settled, self.now, woken=True)
        if self.settled > self.claimed_to or self.now > self.claimed_at + SWEEP_S + 1e-6:
            assert self.schedule.claim_due(self.settled, self.now, woken=False)


TestClaiming = Claiming.TestCase


@given(until=SECONDS, last_id=st.none() | IDS, settled=IDS, now=SECONDS, whole=st.booleans())
def test_a_pull_ends_in_time_and_not_before_it_was_looked_for(
    until: float, last_id: int | None, settled: int, now: float, whole: bool
) -> None:
    ends = pull_ends(until, last_id, settled, now, whole=whole)
    if now < until:
        assert not ends
    elif now >= until + SETTLE_S:
        assert ends
    else:
        assert ends is (whole and last_id is not None and last_id <= settled)


@given(heard=st.lists(IDS), settled=IDS, now=SECONDS)
def test_a_settled_id_that_no_hint_told_of_is_swept_for_in_the_second_round(
    heard: list[int], settled: int, now: float
) -> None:
    schedule = SweepSchedule()
    schedule.swept(0, now)
    for last_id in heard:
        schedule.hear(last_id)
    assert not schedule.due(settled, now), "it may be on its way"
    assert schedule.due(settled, now) is (settled > max(heard, default=0))
    schedule.swept(settled, now)
    assert not schedule.due(settled, now)
    assert schedule.due(settled, now + 1.0)


@given(now=SECONDS)
def test_a_sweep_comes_at_once_after_hints_may_have_been_lost(now: float) -> None:
    schedule = SweepSchedule()
    schedule.swept(0, now)
    assert not schedule.due(0, now)
    schedule.soon()
    assert schedule.due(0, now)
