"""The connections keep the rules of RFC 6455, as the Autobahn test suite reads them.

The first run installs kosoku, and fails where it cannot.
"""

from __future__ import annotations

from tests.websocket.autobahn import run


def test_all_cases_pass() -> None:
    assert run() == (247, [])
