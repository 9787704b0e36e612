"""The compiled pattern, a naive reading of the definition and the expression given to Postgres agree."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from subscriptions.domain.names import is_channel
from subscriptions.domain.pattern import compile_pattern, to_regex

# Few letters and many equal tokens, so that matches and near misses are both frequent.
tokens = st.text(alphabet="ab-~", min_size=1, max_size=3)
names = st.lists(tokens, min_size=1, max_size=6).map(".".join)
patterns = st.builds(
    lambda head, last: ".".join([*head, last]),
    st.lists(st.one_of(tokens, st.just("*")), max_size=5),
    st.one_of(tokens, st.sampled_from(["*", ">"])),
)


def reference(pattern: list[str], name: list[str]) -> bool:
    if pattern == [">"]:
        return bool(name)
    if not pattern or not name:
        return not pattern and not name
    return pattern[0] in ("*", name[0]) and reference(pattern[1:], name[1:])


@given(patterns, names)
def test_all_matchers_agree(pattern: str, name: str) -> None:
    assert is_channel(name)
    expected = reference(pattern.split("."), name.split("."))
    assert compile_pattern(pattern).matches(name) is expected
    assert (re.search(to_regex(pattern), name) is not None) is expected


@given(st.data())
def test_a_pattern_made_from_a_name_matches_it(data: st.DataObject) -> None:
    name = data.draw(names)
    parts = name.split(".")
    cut = data.draw(st.integers(0, len(parts) - 1))
    starred = [data.draw(st.sampled_from([part, "*"])) for part in parts]
    assert compile_pattern(".".join(starred)).matches(name)
    assert compile_pattern(".".join([*starred[:cut], ">"])).matches(name)
