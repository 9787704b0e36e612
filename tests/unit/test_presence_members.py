"""How presence is written in Redis."""

from __future__ import annotations

from cache.presence_members import COUNTS, heard_with, said_with


def test_a_score_says_when_and_how_many() -> None:
    for count in (1, 2, 3, 1000, 25_000, COUNTS - 2):
        score = heard_with(2**31 - 0.5, count)
        assert said_with(score.encode()) == count
        assert int(float(score)) == 2**31 - 1
    without: list[object] = [b"1764000000", b"inf", b"-inf", b"nan", b"x", None, [], heard_with(1.0, 10**9)]
    assert [said_with(score) for score in without] == [None] * len(without)
