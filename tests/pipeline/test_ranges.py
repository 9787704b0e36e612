"""Selections in SQL, and ranges cut into equal parts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from adbc_driver_manager.dbapi import Connection
from gapless_spark import ranges
from gapless_spark.database import close, connect, rows
from gapless_spark.ranges import Range, cut, split
from gapless_spark.selection import Selection, parse_patterns
from hypothesis import given
from hypothesis import strategies as st

from subscriptions.domain.pattern import compile_pattern
from tests.pipeline.conftest import Log


@pytest.fixture
def connection(plain_log: Log) -> Iterator[Connection]:
    made = connect(plain_log.url)
    yield made
    close(made)


@given(st.lists(st.integers(0, 2000), unique=True).map(sorted), st.integers(0, 1000), st.integers(1, 40))
def test_parts_are_even_and_lose_nothing(ids: list[int], lower: int, parts: int) -> None:
    whole = Range(lower, lower + 1000)
    made = cut(whole, ids, parts)
    assert 1 <= len(made) <= parts
    assert (made[0].lower, made[-1].upper) == (whole.lower, whole.upper)
    assert all(
        a.upper == b.lower and not a.empty for a, b in pairwise([*made, Range(whole.upper, whole.upper)])
    )
    inside = [id_ for id_ in ids if whole.lower < id_ <= whole.upper]
    sizes = [sum(part.lower < id_ <= part.upper for id_ in inside) for part in made]
    if len(inside) >= parts:
        assert len(made) == parts or len(made) == parts - 1
        assert max(sizes) <= -(-len(inside) // parts) + (len(inside) // parts if len(made) < parts else 0)


TOKENS = st.sampled_from(["a", "b", "ab", "*"])


@given(
    st.lists(TOKENS, min_size=1, max_size=4),
    st.booleans(),
    st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=5),
)
def test_patterns_mean_what_they_mean_to_the_service(tokens: list[str], more: bool, name: list[str]) -> None:
    pattern = ".".join([*tokens, *([">"] if more else [])])
    channel = ".".join(name)
    assert Selection("default", (pattern,)).matches("default", channel) == compile_pattern(pattern).matches(
        channel
    )


def test_a_selection_knows_its_times_and_namespace() -> None:
    noon = datetime(2026, 11, 20, 12, tzinfo=UTC)
    selection = Selection("team", parse_patterns("a.>, b"), noon, noon + timedelta(hours=1))
    assert selection.matches("team", "a.x.y", noon)
    assert not selection.matches("team", "a", noon)
    assert not selection.matches("default", "b", noon)
    assert not selection.matches("team", "b", noon - timedelta(microseconds=1))
    assert not selection.matches("team", "b", noon + timedelta(hours=1))


def held(connection: Connection, selection: Selection, made: list[Range]) -> list[int]:
    """The number of selected messages a range."""
    return [
        int(rows(connection, f"select count(*) {selection.source(part.lower, part.upper)}")[0][0])
        for part in made
    ]


@pytest.mark.parametrize("exact", [100_000, 0])
def test_voids_and_segments_do_not_unbalance(
    plain_log: Log, connection: Connection, monkeypatch: pytest.MonkeyPatch, exact: int
) -> None:
    monkeypatch.setattr(ranges, "EXACT_MESSAGES", exact)
    owner = plain_log.owner
    owner.append("a.one", ["1"] * 1000)
    owner.execute("begin")
    owner.append("a.one", ["1"] * 3000)
    owner.execute("rollback")
    owner.append("b", ["1"] * 500)
    assert owner.value("select gapless.roll_segment(0)")
    ids = owner.append("a.two", ["1"] * 1000)
    assert ids[0] == 2**24
    whole = Range(0, ids[-1])
    made = split(connection, Selection(patterns=("a.*",)), whole, 4)
    assert held(connection, Selection(patterns=("a.*",)), made) == [500] * 4
    assert held(connection, Selection(), split(connection, Selection(), whole, 5)) == [500] * 5


def test_a_sample_is_about_even(
    plain_log: Log, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "EXACT_MESSAGES", 0)
    monkeypatch.setattr(ranges, "SAMPLED_PAGES", 40)
    for _ in range(20):
        ids = plain_log.owner.append("a", ["1"] * 1000)
    sizes = held(connection, Selection(), split(connection, Selection(), Range(0, ids[-1]), 4))
    assert sum(sizes) == 20_000
    assert len(sizes) == 4
    assert max(sizes) < 7500


def test_few_messages_are_not_shared_out(plain_log: Log, connection: Connection) -> None:
    assert split(connection, Selection(), Range(0, 0), 4) == []
    assert split(connection, Selection(), Range(0, 9), 4) == [Range(0, 9)]
    ids = plain_log.owner.append("a", ["1"] * 10)
    assert len(split(connection, Selection(), Range(0, ids[-1]), 4)) == 4
    assert len(split(connection, Selection(), Range(0, ids[-1]), 4, least=5)) == 2
    assert len(split(connection, Selection(), Range(0, ids[-1]), 4, least=11)) == 1
    assert len(split(connection, Selection(patterns=("other",)), Range(0, ids[-1]), 4)) == 1
