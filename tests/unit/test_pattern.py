"""Channel names and patterns: what is let through, what matches, and how long a hostile one takes."""

from __future__ import annotations

import time

import pytest

from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.names import check_channel, is_channel
from subscriptions.domain.pattern import (
    MAX_PATTERN_CHARACTERS,
    MAX_PATTERN_TOKENS,
    check_budget,
    check_pattern,
    compile_pattern,
    is_pattern,
    to_regex,
)

BAD_NAMES = [
    "", ".", "..", ".a", "a.", "a..b", "a/b", "a#b", "$sys", "a b", "a\n", "\r", "a\x00", "*", "a.*", ">",
    "a.>", "чат", "cafe\u0301", "caf\u00e9", "a\u200b", "ａ", "a%00", "a" * 256, "a,b", "{a}", "a\u2028", "٣",
]  # fmt: skip


@pytest.mark.parametrize("name", ["a", "chat.lobby", "A-Z_~:@.9", "a" * 255, "user:7@home", "-", "~.~"])
def test_good_names_pass_as_names_and_as_patterns(name: str) -> None:
    assert check_channel(name) == name
    assert check_pattern(name) == name
    assert not is_pattern(name)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused_about_their_field(name: str) -> None:
    assert not is_channel(name)
    with pytest.raises(GaplessError) as caught:
        check_channel(name, "messages[3].channel")
    assert caught.value.code is Code.INVALID_REQUEST
    assert caught.value.errors[0].field == "messages[3].channel"


@pytest.mark.parametrize(
    "text", ["", "a.>.b", ">.a", "a*", "*a", "a.>>", "**", "a..*", ".*", "*.", "a.\n", "#", "*" * 256, "*.ж"]
)
def test_bad_patterns_are_refused(text: str) -> None:
    with pytest.raises(GaplessError) as caught:
        check_pattern(text)
    assert caught.value.code is Code.INVALID_REQUEST


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("chat.*", ["chat.lobby"], ["chat", "chat.a.b", "chats.a", "chat."]),
        ("chat.>", ["chat.lobby", "chat.a.b.c"], ["chat", "chatter.a"]),
        (">", ["a", "a.b"], [""]),
        ("*.b.*", ["a.b.c"], ["a.b", "b.b", "a.c.c"]),
        ("a.b", ["a.b"], ["axb", "a.b.c", "a.b\n"]),
        ("*.>", ["a.b", "a.b.c"], ["a"]),
    ],
)
def test_matches(pattern: str, matching: list[str], other: list[str]) -> None:
    compiled = compile_pattern(pattern)
    assert [name for name in matching + other if compiled.matches(name)] == matching


def test_regex_is_anchored() -> None:
    assert to_regex("a.*.>") == r"^a\.[^.]+\.[^.]+(\.[^.]+)*$"


def test_hostile_patterns_stay_linear() -> None:
    """A thousand looks take some milliseconds of the processor."""
    name = ("a." * 127) + "b"
    for text in ("*." * 127 + "c", "a.*." * 63 + ">", "*." * 126 + ">", "a.*." * 63 + "c"):
        compiled = compile_pattern(text)
        started = time.thread_time()
        for _ in range(1000):
            compiled.matches(name)
        assert time.thread_time() - started < 1


def test_patterns_of_one_reader_have_a_budget() -> None:
    """The database matches all of them at once, and compiles them first; names are looked up."""
    check_budget(["a.*"] * (MAX_PATTERN_TOKENS // 2), "channels")
    check_budget([".".join("a" * 127)] * 128, "channels")
    long = "x" * 253 + ".*"
    check_budget([long] * (MAX_PATTERN_CHARACTERS // len(long)), "channels")
    for many in (["*.b.c.>"] * 129, [long] * 33, [".".join("*" * 127)] * 128):
        with pytest.raises(GaplessError) as refused:
            check_budget(many, "channels")
        assert refused.value.code is Code.INVALID_REQUEST
        assert refused.value.errors[0].field == "channels"
