"""What the sink takes for JSON: the same that the service takes over HTTP."""

from __future__ import annotations

import pytest
from gapless_spark.sink_json import why_unfit

from app.wire import json as wire
from subscriptions.domain.errors import GaplessError

FIT = [
    "1",
    " null ",
    '"ü 😀 \\ud83d\\ude00"',
    '{"a": [1, 2.5, -0.0, true, {"b": null}]}',
    "18446744073709551615",
    "-9223372036854775808",
    "1e300",
    '"\\\\u0000"',
    "[" * 32 + "]" * 32,
    "0.0e-5",
    '{"text": "' + "{[" * 40 + '"}',
]
UNFIT = [
    "",
    "hello",
    "{'a': 1}",
    "[1,]",
    "\ufeff1",
    "NaN",
    "[Infinity]",
    "1e999",
    "1e-500",
    "18446744073709551616",
    "-9223372036854775809",
    "1" * 5000,
    '{"a": 1, "a": 2}',
    '"\\u0000"',
    '"\\ud800"',
    '"\\udc00 later"',
    '"tab\tinside"',
    "[" * 33 + "]" * 33,
    "[" * 100_000,
    "1 2",
    "1\u00a0",
]


@pytest.mark.parametrize("text", FIT, ids=lambda text: text[:20])
def test_fits(text: str) -> None:
    assert why_unfit(text) is None
    wire.check(text.encode())


@pytest.mark.parametrize("text", UNFIT, ids=lambda text: text[:20])
def test_does_not_fit(text: str) -> None:
    assert why_unfit(text)
    with pytest.raises(GaplessError):
        wire.check(text.encode())
