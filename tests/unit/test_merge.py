"""The merge's decisions, one at a time."""

from __future__ import annotations

from subscriptions.domain.merge import Merge


def test_copies_wait_for_the_one_before_them() -> None:
    merge: Merge[str] = Merge(4)
    merge.offer(7, "7")
    merge.offer(6, "6")
    assert merge.take() == []
    assert (merge.behind, merge.missing()) == (True, 4)
    merge.offer(5, "5")
    assert merge.take() == ["5", "6", "7"]
    assert (merge.behind, merge.missing(), merge.floor) == (False, None, 7)


def test_what_was_handed_out_is_not_taken_again() -> None:
    merge: Merge[str] = Merge(100)
    merge.offer(95, "95")
    assert (merge.take(), merge.missing(), merge.known) == ([], None, 100)
    assert merge.delivered(100)
    assert not merge.delivered(101)


def test_one_copy_too_many_lets_all_go() -> None:
    merge: Merge[int] = Merge(0, max_ahead=2)
    for position in (2, 3, 4):
        merge.offer(position, position)
    assert list(merge._ahead) == [4]
    assert merge.fill([(p, p) for p in (1, 2, 3)], 3) == [1, 2, 3, 4]


def test_what_the_database_lacks_is_void() -> None:
    merge: Merge[int] = Merge(0)
    merge.offer(4, 4)
    merge.offer(6, 6)
    assert merge.fill([(2, 2)], 5) == [2, 4, 6]
    assert merge.floor == 6


def test_an_answer_from_before_changes_nothing() -> None:
    merge: Merge[int] = Merge(5)
    assert merge.fill([(3, 3), (5, 5)], 5) == []
    assert merge.floor == 5


def test_on_the_logs_axis_only_what_is_settled_is_missing() -> None:
    merge: Merge[int] = Merge(5)
    merge.note(9)
    assert merge.missing(readable_to=5) is None
    assert merge.missing(readable_to=7) == 5
