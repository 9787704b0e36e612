"""Strict JSON: which texts are refused, with which code, and that refusing them is quick."""

from __future__ import annotations

import contextlib
import time

import pytest

from app.message.json import MAX_DEPTH, check, check_parts, one_line
from subscriptions.domain.errors import Code, GaplessError

MALFORMED = [
    b"", b" ", b"{", b'{"a":1}x', b'{"a":1} {}', b"[1,]", b"{'a':1}", b"01", b"+1", b"1.", b".5", b"0x1",
    b"nul",
    b"\xef\xbb\xbf{}", '{"a":1}'.encode("utf-16"), b'"\xff"', b'"\xc0\x80"', b'"\xed\xa0\x80"', b'"a\nb"',
    b'"\x00"',
    b'{"a":1,"a":1}', b'{"a" :1,"a" :2}', b'{"a":1,"\\u0061":2}', b'[{"x":{"b":1,"c":{},"b":2}}]',
    b'{"a":":","a":"\\":"}', b'{"a":{"b":1},"a":2}', b'"\\x"', b"// c\n1", b"1\x00",
]  # fmt: skip

INVALID = [
    b'"\\u0000"', b'{"\\u0000":1}', b'"\\\\\\u0000"', b'"\\ud800"', b'"\\ud800\\u0041"', b'{"\\udc00":1}',
    b"NaN",
    b"[Infinity]", b"-Infinity", b"18446744073709551616", b"[-9223372036854775809]", b"9" * 5000, b"1e400",
    b"-1e400",
    b'{"a":[' + b"1" * 19 + b"," + b"1" * 30 + b"]}", b"[" * 33 + b"]" * 33, b'{"a":' * 33 + b"1" + b"}" * 33,
    b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b"1e-400", b'{"a":[-0.1E-99999]}', b"0e-99999",
    b"0e-" + b"9" * 5000,
    b"0." + b"0" * 20_000 + b"1", b"1." + b"1" * 20_000, b'["\\"", 1e-400]', b"[1,\n1e-999]",
]  # fmt: skip

GOOD = [
    b"null", b" 1 ", b'"\\\\u0000"', b'"\\ud83d\\ude00"', b"18446744073709551615", b"-9223372036854775808",
    b"1e308",
    b"5e-324", b'"1e-9999"', b'["9e-99999", 1]', b"0." + b"0" * 300 + b"1", b"0e-300", b"1.5e-007",
    b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, b'{"a":":","b":"\\":","c": "\\"x\\" :"}',
    b'{"a" : {"a": 1}}',
    b'{"":""}', b'[{"a":1},{"a":1}]', "\"чат \u2028 \x7f\"".encode(), b'{"at":"12:00:00","url":"http://x"}',
    b"-0",
]  # fmt: skip


def code_of(raw: bytes) -> Code:
    with pytest.raises(GaplessError) as caught:
        check(raw)
    return caught.value.code


@pytest.mark.parametrize("raw", MALFORMED, ids=lambda raw: repr(raw[:24]))
def test_malformed(raw: bytes) -> None:
    assert code_of(raw) is Code.MALFORMED_JSON


@pytest.mark.parametrize("raw", INVALID, ids=lambda raw: repr(raw[:24]))
def test_well_formed_but_not_acceptable(raw: bytes) -> None:
    assert code_of(raw) is Code.INVALID_REQUEST


@pytest.mark.parametrize("raw", GOOD, ids=lambda raw: repr(raw[:24]))
def test_good(raw: bytes) -> None:
    check(raw)


def test_malformed_wins_over_what_comes_before_it() -> None:
    assert code_of(b'{"a":NaN,') is Code.MALFORMED_JSON
    assert code_of(b'{"a":"\\ud800" 1}') is Code.MALFORMED_JSON


def test_one_line_changes_whitespace_only() -> None:
    raw = b'{\r\n "a\\n" :\t[1,\n2]\r}'
    assert one_line(raw) == b'{   "a\\n" :\t[1, 2] }'
    assert check(one_line(raw)) == check(raw)
    assert one_line(b'{"a":1}') == b'{"a":1}'


@pytest.mark.parametrize(
    "raw",
    [
        b"[" + b"[]," * 350_000 + b"1]",
        b"[" + b"1," * 700_001 + b"1]",
        b"[" * 700_001,
        b'{"a":[' + b'{"b":1},' * 350_001 + b"1]}",
    ],
    ids=lambda raw: repr(raw[:12]),
)
def test_more_parts_than_any_message_has_are_refused_before_decoding(raw: bytes) -> None:
    assert code_of(raw) is Code.PAYLOAD_TOO_LARGE
    with pytest.raises(GaplessError) as caught:
        check_parts(raw)
    assert caught.value.code is Code.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize(
    "raw",
    [
        b"[" + b"[]," * 349_000 + b"1]",
        b"[" + b"1," * 524_000 + b"1]",
        b'["' + b"[{," * 400_000 + b'"]',
        b'["' + b'\\",' * 800_000 + b'"]',
        b'["' + b"\\\\" * 800_000 + b'", "' + b"," * 800_000 + b'"]',
    ],
    ids=lambda raw: repr(raw[:12]),
)
def test_a_message_of_a_mebibyte_is_let_in_and_strings_count_for_nothing(raw: bytes) -> None:
    check(raw)


SIZE = 400_000
RUN = b"1" * 7_499
HOSTILE = [
    b"1" * SIZE,
    b'["' + (RUN + b'","') * (SIZE // 7_502) + b'"]',
    b"[" + (RUN + b",") * (SIZE // 7_500) + b"1]",
    b"[" + (b"0." + RUN + b"e-100,") * (SIZE // 7_507) + b"1]",
    b"[" + b"1e-300," * (SIZE // 7) + b"0e-300]",
    b"[" + b"0e-300," * (SIZE // 7) + b"1]",
    b"[" + b"1e999," * (SIZE // 6) + b"1]",
    b"[" + b"NaN," * (SIZE // 4) + b"1]",
    b'"' + b"\\" * (SIZE - 2) + b'"',
    b'"' + b"\\\\" * (SIZE // 2) + b'\\u0000"',
    b'"' * SIZE,
    b'["' + b'\\"' * (SIZE // 2),
    b'{"a":' * (SIZE // 5),
    b'{"":":"' + b',"":":"' * (SIZE // 7) + b"}",
    b'"\\ud800' + b"a" * SIZE + b'"',
    b"\n" * SIZE + b"x",
]


def cost_s(raw: bytes) -> float:
    """Processor seconds of one check; the least of three, since others use the machine too."""
    costs = []
    for _ in range(3):
        began = time.thread_time()
        with contextlib.suppress(GaplessError):
            check(raw)
        costs.append(time.thread_time() - began)
    return min(costs)


@pytest.mark.parametrize("raw", HOSTILE, ids=lambda raw: repr(raw[:12]))
def test_no_text_costs_much_more_than_an_ordinary_one_of_its_length(raw: bytes) -> None:
    ordinary = b"[" + b'{"name":"value","n":1.5},' * (SIZE // 25) + b"1]"
    assert cost_s(raw) < 20 * cost_s(ordinary)
