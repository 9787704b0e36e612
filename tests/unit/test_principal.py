"""What a grant covers, and how keys of different subjects are kept apart."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.pattern import compile_pattern, covers, intersect
from subscriptions.domain.principal import DECISIONS, Action, Grant, Noun, Principal

_TOKENS = ("a", "b", "*")
_NAMES = [".".join(parts) for n in (1, 2, 3, 4) for parts in itertools.product("ab", repeat=n)]
_PATTERNS = [
    ".".join([*parts, *last])
    for n in (0, 1, 2, 3)
    for parts in itertools.product(_TOKENS, repeat=n)
    for last in ([], [">"])
    if parts or last
]


def test_a_pattern_covers_another_one_if_it_matches_each_of_its_names() -> None:
    """Names of four tokens tell all patterns of up to three apart, and those that end with `>`."""
    matched = {p: {name for name in _NAMES if compile_pattern(p).matches(name)} for p in _PATTERNS}
    for pattern, other in itertools.product(_PATTERNS, repeat=2):
        assert covers(pattern, other) is (matched[other] <= matched[pattern] and _reaches(pattern, other))


def _reaches(pattern: str, other: str) -> bool:
    """Whether the pattern also matches the names of `other` that are longer than those tried."""
    return pattern.endswith(">") or not other.endswith(">")


def test_what_two_patterns_have_in_common_is_one_pattern() -> None:
    matched = {p: {name for name in _NAMES if compile_pattern(p).matches(name)} for p in _PATTERNS}
    for pattern, other in itertools.product(_PATTERNS, repeat=2):
        common = intersect(pattern, other)
        names = set() if common is None else {n for n in _NAMES if compile_pattern(common).matches(n)}
        assert names == matched[pattern] & matched[other], (pattern, other, common)
        assert (common is None) is (not names)


def test_names_that_would_be_too_long_are_not_in_common() -> None:
    assert intersect("*." + "a" * 200, "b" * 200 + ".*") is None


@given(st.sampled_from(_PATTERNS), st.sampled_from(_NAMES))
def test_a_pattern_covers_the_names_that_it_matches(pattern: str, name: str) -> None:
    assert covers(pattern, name) is compile_pattern(pattern).matches(name)


def test_a_grant_is_about_its_own_nouns() -> None:
    grant = Grant(frozenset({Action.CONSUME}), channels=("a.>",), subscriptions=("b",))
    assert [grant.covers(noun, "a.x") for noun in Noun] == [True, False]
    assert [grant.covers(noun, "b") for noun in Noun] == [False, True]


def test_an_action_of_one_grant_is_not_one_on_the_names_of_another() -> None:
    who = Principal(
        "n",
        "s",
        (
            Grant(frozenset({Action.PUBLISH}), channels=("in",)),
            Grant(frozenset({Action.SUBSCRIBE}), channels=("out",)),
        ),
    )
    who.require((Action.PUBLISH,), Noun.CHANNEL, ["in"])
    with pytest.raises(GaplessError, match="does not grant publish on channel out") as refused:
        who.require((Action.PUBLISH,), Noun.CHANNEL, ["in", "out"])
    assert refused.value.code is Code.FORBIDDEN
    with pytest.raises(GaplessError, match="does not grant consume on anything"):
        who.require_any((Action.CONSUME,))


def test_without_grants_nothing_is_allowed_and_without_a_credential_everything() -> None:
    assert not Principal("n", "s", ()).may(tuple(Action), Noun.CHANNEL, "a")
    assert Principal("n").may((Action.ADMIN,), Noun.CHANNEL, ">")


def test_what_was_decided_before_changes_no_answer() -> None:
    who = Principal(
        "n", "s", (Grant(frozenset({Action.PUBLISH}), channels=("a.*",), subscriptions=("b.*",)),)
    )
    questions = [
        (actions, noun, f"{letter}.{number}")
        for number in range(DECISIONS)
        for actions in ((Action.PUBLISH,), (Action.CONSUME,), (Action.CONSUME, Action.PUBLISH))
        for noun in Noun
        for letter in "ab"
    ]
    expected = [
        Action.PUBLISH in actions and name.startswith("a" if noun is Noun.CHANNEL else "b")
        for actions, noun, name in questions
    ]
    for _ in range(2):
        assert [who.may(*question) for question in questions] == expected
        assert [who.may(*each) for each in (questions[0], questions[0])] == [expected[0]] * 2


_KEYS = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=4)
_SUBJECTS = st.none() | st.text(st.sampled_from("ab\n"), min_size=1, max_size=4)


@given(_SUBJECTS, _KEYS, _SUBJECTS, _KEYS)
def test_two_subjects_with_one_key_do_not_meet(
    one: str | None, key: str, other: str | None, its: str
) -> None:
    alike = Principal("n", one).own_key(key) == Principal("n", other).own_key(its)
    assert alike is ((one, key) == (other, its))
