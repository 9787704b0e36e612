"""Limits that several programs must know, because none of them can ask another: one number everywhere.

What makes a message valid is in Python and in SQL; tests/db/test_validity.py compares the two. The sink of
the Spark package asks the database.
"""

from __future__ import annotations

import re

import pytest
from gapless._calls import delivery
from gapless._streams import consuming as streams
from gapless_cli import limits as commands
from gapless_spark import options, selection
from gapless_spark.errors import BadOption

from app.http import parameters
from app.message import limits, settlement
from app.process.settings import Settings
from subscriptions.domain import model, names, pattern
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.selection import MAX_CHANNELS
from tests.repo.test_tree import ROOT

SQL = ROOT / "db"


def test_what_the_client_asks_for_is_within_what_the_service_gives() -> None:
    assert delivery.MAX_RECEIPTS == settlement.MAX_RECEIPTS
    assert delivery.MAX_REASON_CHARACTERS == settlement.MAX_REASON_CHARACTERS
    assert streams.MAX_PREFETCH == commands.MAX_PREFETCH == settlement.MAX_PREFETCH
    assert commands.MAX_PAGE == parameters.MAX_LIMIT
    assert commands.MAX_LAST == parameters.MAX_LAST
    assert commands.MAX_MESSAGES == limits.MAX_MESSAGES


def test_the_highest_id_is_one_number() -> None:
    assert options.MAX_ID == model.MAX_ID
    written = {
        number
        for path in [*(SQL / "functions").glob("*.sql"), *(SQL / "sql").glob("*.sql")]
        for number in re.findall(r"\b9007[0-9]{12}\b", path.read_text())
    }
    assert written == {str(model.MAX_ID)}


def test_a_namespace_is_named_by_one_rule() -> None:
    (rule,) = [
        found.pattern for found in Settings.model_fields["namespace"].metadata if hasattr(found, "pattern")
    ]
    assert rule == f"^{options._NAMESPACE.pattern}$"
    assert (
        f"name text not null unique check (name ~ '{rule}')" in (SQL / "migrations/0001_log.sql").read_text()
    )


LONG = "x" * names.MAX_NAME_CHARACTERS
TEXTS = ["a", "a.b", "A~:@-_9", LONG, LONG + "x", "", ".", "a.", ".a", "a..b", "a b", "ä", "a\n", "a\0"]
PATTERNS = [
    "*",
    ">",
    "a.*",
    "*.b",
    "a.*.c.>",
    "a.>",
    ">.a",
    "a*",
    "**",
    "a.>b",
    "a.> ",
    f"{LONG[:-2]}.*",
    f"{LONG}.*",
]


@pytest.mark.parametrize("text", TEXTS + PATTERNS)
def test_names_and_patterns_are_the_same_to_the_service_and_to_spark(text: str) -> None:
    assert selection.is_name(text) == names.is_channel(text)
    try:
        pattern.check_pattern(text)
    except GaplessError:
        with pytest.raises(BadOption):
            selection.check_pattern(text)
    else:
        assert selection.check_pattern(text) == text
        assert selection.to_regex(text) == pattern.to_regex(text)


def test_a_selection_has_as_many_channels_and_patterns_in_both() -> None:
    assert selection.MAX_PATTERNS == MAX_CHANNELS
