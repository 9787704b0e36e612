"""Selections: equal when they ask for the same, and single when one channel is all they ask for."""

from __future__ import annotations

import pytest

from subscriptions.domain.selection import Changes, select


def test_order_and_repetition_make_no_difference() -> None:
    assert select("n", ["b", "a", "b"], [], ["y", "x"]) == select("n", ("a", "b"), (), ("x", "y", "x"))
    assert select("n", ["a"]) != select("m", ["a"])


@pytest.mark.parametrize(
    ("names", "patterns", "single"),
    [
        (["a"], [], "a"),
        (["a", "a"], [], "a"),
        (["a", "b"], [], None),
        (["a"], ["a"], None),
        ([], ["a"], None),
    ],
)
def test_one_channel_is_single(names: list[str], patterns: list[str], single: str | None) -> None:
    assert select("n", names, patterns).single == single


@pytest.mark.parametrize(
    ("types", "keys", "type_", "key", "admitted"),
    [
        ((), (), "a", None, True),
        (("a",), (), "a", None, True),
        (("a",), (), "b", None, False),
        ((), ("k",), "a", None, False),
        ((), ("k",), "a", "k", True),
        (("a",), ("k",), "a", "j", False),
    ],
)
def test_filters(
    types: tuple[str, ...], keys: tuple[str, ...], type_: str, key: str | None, admitted: bool
) -> None:
    assert select("n", ["a"], (), types, keys).admits(type_, key, is_change=False) is admitted


def test_changes_are_read_with_the_rest_or_left_out_or_read_alone() -> None:
    def admitted(changes: Changes) -> list[bool]:
        selection = select("n", ["a"], changes=changes)
        return [selection.admits("a", None, is_change=is_change) for is_change in (False, True)]

    assert (admitted("all"), admitted("none"), admitted("only")) == (
        [True, True],
        [True, False],
        [False, True],
    )
    assert not select("n", ["a"], ["b.*"]).is_filtered
    assert select("n", ["a"], changes="none").is_filtered
    assert select("n", ["a"], changes="none") != select("n", ["a"])
