"""The merge against a model of a log: whatever comes in whatever order, it hands out the log, once."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from subscriptions.domain.merge import Merge

positions = st.integers(1, 40)


@dataclass(slots=True)
class Log:
    """Positions that are committed, void, or (on the axis of the whole log) still undecided."""

    committed: dict[int, str] = field(default_factory=dict)
    top: int = 0

    def settled(self, undecided: set[int]) -> int:
        return min(undecided, default=self.top + 1) - 1


class MergeMachine(RuleBasedStateMachine):
    """One merge over the log's axis: transactions end in any order, hints come late, twice, or never."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.undecided: set[int] = set()
        self.out: list[int] = []

    @initialize(committed=st.lists(st.booleans(), max_size=10), ahead=st.integers(1, 4))
    def begin(self, committed: list[bool], ahead: int) -> None:
        for number, there in enumerate(committed, start=1):
            if there:
                self.log.committed[number] = f"m{number}"
        self.log.top = self.start = len(committed)
        self.merge: Merge[str] = Merge(self.start, ahead)

    @rule(count=st.integers(1, 3))
    def take_ids(self, count: int) -> None:
        for _ in range(count):
            self.log.top += 1
            self.undecided.add(self.log.top)

    @rule(data=st.data(), commit=st.booleans())
    def decide(self, data: st.DataObject, commit: bool) -> None:
        if self.undecided:
            position = data.draw(st.sampled_from(sorted(self.undecided)))
            self.undecided.discard(position)
            if commit:
                self.log.committed[position] = f"m{position}"

    @rule(data=st.data(), copy=st.booleans())
    def hint(self, data: st.DataObject, copy: bool) -> None:
        """Of anything committed, however old, however often."""
        if self.log.committed:
            position = data.draw(st.sampled_from(sorted(self.log.committed)))
            if copy:
                self.merge.offer(position, self.log.committed[position])
            else:
                self.merge.note(position)
            self._give(self.merge.take())

    @rule(limit=st.integers(1, 3))
    def read_settled(self, limit: int) -> None:
        """A span of the log, up to the watermark or to a limit."""
        settled = self.log.settled(self.undecided)
        after = self.merge.missing(settled)
        if after is not None:
            found = [(p, m) for p, m in sorted(self.log.committed.items()) if after < p <= settled]
            complete_to = found[limit - 1][0] if len(found) >= limit else settled
            self._give(self.merge.fill(found[:limit], complete_to))

    @rule(data=st.data())
    def read_stale(self, data: st.DataObject) -> None:
        """An answer that was asked for long ago: its span was settled then, and is old news now."""
        settled = self.log.settled(self.undecided)
        after = data.draw(st.integers(0, self.merge.floor))
        upto = data.draw(st.integers(after, max(after, min(settled, self.merge.floor))))
        found = [(p, m) for p, m in self.log.committed.items() if after < p <= upto]
        self._give(self.merge.fill(found, upto))

    def _give(self, items: list[str]) -> None:
        self.out += [int(item[1:]) for item in items]

    @invariant()
    def what_came_out_is_the_log(self) -> None:
        """Strictly increasing, and complete up to the floor."""
        if hasattr(self, "merge"):
            floor = self.merge.floor
            assert self.out == [p for p in sorted(self.log.committed) if self.start < p <= floor]
            assert len(self.merge._ahead) <= self.merge._max_ahead
            assert self.merge.known >= floor

    def teardown(self) -> None:
        """Once everything is decided, one read brings all."""
        if hasattr(self, "merge"):
            self.undecided.clear()
            while self.merge.missing(self.log.top) is not None:
                self.read_settled(2)
            self.what_came_out_is_the_log()
            assert self.merge.floor >= self.log.top


TestMergeMachine = pytest.mark.filterwarnings("default")(MergeMachine.TestCase)
TestMergeMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(st.integers(0, 20), st.lists(positions), st.permutations(range(1, 41)))
def test_any_order_of_hints_gives_the_channel(floor: int, again: list[int], order: list[int]) -> None:
    """A channel's axis has no voids: with all copies there, nothing needs to be read."""
    merge: Merge[int] = Merge(floor)
    out = []
    for position in [*again, *order, *again]:
        merge.offer(position, position)
        out += merge.take()
    assert out == list(range(floor + 1, 41))
    assert merge.missing() is None
    assert not merge._ahead


@given(st.integers(0, 20), st.lists(positions, unique=True), st.integers(1, 5))
def test_any_subset_of_hints_and_one_read_give_the_channel(floor: int, heard: list[int], ahead: int) -> None:
    merge: Merge[int] = Merge(floor, ahead)
    out = []
    for position in heard:
        merge.offer(position, position)
        out += merge.take()
    merge.note(40)
    after = merge.missing()
    if after is not None:
        out += merge.fill([(p, p) for p in range(after + 1, 41)], 40)
    assert out == list(range(floor + 1, 41))
    assert not merge.behind
