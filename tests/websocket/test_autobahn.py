"""The connections keep the rules of RFC 6455, as the Autobahn test suite reads them.

The first run installs kosoku, and fails where it cannot.
"""

from __future__ import annotations

import pytest

from tests.websocket.autobahn import run


@pytest.mark.drill
def test_all_cases_pass() -> None:
    assert run() == (247, [])
