"""Tables that say what the code says."""

from __future__ import annotations

import pytest

from app.http.problem import STATUS
from subscriptions.domain.errors import RETRYABLE, Code
from tests.docs.pages import read, section
from tests.docs.tables import TABLES


@pytest.mark.parametrize("title", TABLES)
def test_generated_tables_are_up_to_date(title: str) -> None:
    advice = "write it anew with: python -m tests.docs.tables"
    page, table = TABLES[title]
    assert section(page, title) == table(), advice


@pytest.mark.parametrize("code", Code)
def test_every_error_code_is_in_the_protocol(code: Code) -> None:
    row = f"| `{code.value}` | {STATUS[code]} | {'yes' if code in RETRYABLE else 'no'} |"
    assert row in read("docs/protocol.md")
