"""The watermark against a model of the database: it never announces an id at or below which something can
still appear, not even after a crash; and it announces every id once all that held it back is gone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from subscriptions.domain.watermark import MAX_CANDIDATES, Tick, Watermark


@dataclass(slots=True)
class Running:
    name: str
    ids: list[int]


class Database(RuleBasedStateMachine):
    """Transactions that take ids and end, a journal that is flushed by commits or not at all, crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.watermark = Watermark()
        self.running: list[Running] = []
        self.visible: set[int] = set()
        self.sequence = self.durable_sequence = 0
        self.lsn = self.flushed = 0
        self.life = 1
        self.begun = 0

    @rule()
    def begin(self) -> None:
        self.begun += 1
        # Names come again in another life, as the database's own do.
        self.running.append(Running(f"3/{self.begun}", []))

    @rule(data=st.data(), count=st.integers(1, 3))
    def take_ids(self, data: st.DataObject, count: int) -> None:
        if self.running:
            transaction = data.draw(st.sampled_from(self.running))
            for _ in range(count):
                self.sequence += 1
                self.lsn += 1
                transaction.ids.append(self.sequence)

    @rule(data=st.data(), commits=st.booleans())
    def end(self, data: st.DataObject, commits: bool) -> None:
        if not self.running:
            return
        transaction = data.draw(st.sampled_from(self.running))
        self.running.remove(transaction)
        self.lsn += 1
        if commits:
            for id_ in transaction.ids:
                self._appears(id_)
            self.flush()

    @rule()
    def flush(self) -> None:
        self.flushed = self.lsn
        self.durable_sequence = self.sequence

    @rule()
    def crash(self) -> None:
        """Running transactions are gone, and ids of which nothing was flushed are taken anew."""
        self.running.clear()
        self.begun = 0
        self.sequence = self.durable_sequence
        self.life += 1
        self.lsn = self.flushed = self.flushed + 1

    @rule()
    def tick(self) -> None:
        self._settle_check(self.watermark.observe(self._reading()))

    def _reading(self) -> Tick:
        return Tick(
            self.sequence, self.lsn, self.flushed, frozenset(t.name for t in self.running), str(self.life)
        )

    def _appears(self, id_: int) -> None:
        assert id_ > self.watermark.settled, f"{id_} appeared below the settled {self.watermark.settled}"
        self.visible.add(id_)

    def _settle_check(self, settled: int) -> None:
        held = [id_ for t in self.running for id_ in t.ids]
        assert settled < min(held, default=settled + 1), "a running transaction holds it"
        assert settled <= self.durable_sequence, "a crash would hand it out again"

    @invariant()
    def bounded(self) -> None:
        assert len(self.watermark._candidates) <= MAX_CANDIDATES

    def teardown(self) -> None:
        """With everybody gone and the journal flushed, two ticks settle all."""
        self.running.clear()
        self.flush()
        for _ in range(2):
            self.watermark.observe(self._reading())
        assert self.watermark.settled == self.sequence
        assert not self.watermark.pending


TestWatermark = pytest.mark.filterwarnings("default")(Database.TestCase)
TestWatermark.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_more_readings_than_are_kept_only_delay() -> None:
    watermark = Watermark()
    for last_id in range(1, 3 * MAX_CANDIDATES):
        assert watermark.observe(Tick(last_id, last_id, 0, frozenset({"1/1"}))) == 0
    assert len(watermark._candidates) == MAX_CANDIDATES
    gone = Tick(999, 999, 999, frozenset())
    assert watermark.observe(gone) == MAX_CANDIDATES
    assert watermark.observe(gone) == 999


def test_a_last_id_that_nobody_took_is_never_waited_for() -> None:
    """One reading lies ahead of the ids taken; the next one shows it, and it settles nothing."""
    watermark = Watermark()
    busy = frozenset({"1/1"})
    watermark.observe(Tick(10, 10, 10, busy))
    watermark.observe(Tick(42, 10, 10, busy))
    assert watermark.observe(Tick(11, 11, 11, frozenset({"1/2"}))) == 10
    assert watermark.regressions == 1
    assert watermark.observe(Tick(12, 12, 12, frozenset())) == 12


@pytest.mark.parametrize("less", [Tick(9, 90, 90, frozenset()), Tick(10, 89, 89, frozenset())])
def test_a_database_that_holds_less_than_it_did_was_taken_back(less: Tick) -> None:
    watermark = Watermark()
    assert watermark.observe(Tick(10, 90, 90, frozenset())) == 10
    assert watermark.was_taken_back(less)
    assert not watermark.was_taken_back(Tick(10, 90, 90, frozenset()))
    another = replace(less, epoch="another")
    assert not watermark.was_taken_back(another), "it says so itself"


def test_ids_of_another_history_may_be_smaller() -> None:
    """A sibling was promoted: what was settled of the other one says nothing of it."""
    watermark = Watermark()
    here = Tick(1000, 10, 10, frozenset(), "1", 1, "here", 90)
    assert watermark.observe(here) == 1000
    there = Tick(500, 5, 5, frozenset({"3/1"}), "2", 1, "there", 90)
    assert not watermark.was_taken_back(there)
    assert watermark.observe(there) == 90, "somebody may still publish below 500"
    assert watermark.observe(replace(there, holders=frozenset())) == 500
    assert (watermark.last_id, watermark.regressions) == (500, 0)
