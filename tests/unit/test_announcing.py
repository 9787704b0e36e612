"""Routes make every change that somebody waits for through what announces it."""

from __future__ import annotations

import re
from typing import Final

import pytest

from subscriptions.engine.durable import announcing
from tests.support import ROOT

WHICH: Final = {
    "subscriptions": announcing.AnnouncingSubscriptions,
    "dead_letters": announcing.AnnouncingDeadLetters,
    "policies": announcing.AnnouncingPolicies,
    "schedules": announcing.AnnouncingSchedule,
    "transactions": announcing.AnnouncingTransactions,
}
ASKED: Final = [
    (path.name, *found)
    for path in sorted((ROOT / "app" / "api").glob("*.py"))
    for found in re.findall(r"(\w+)\.port\.(\w+)", path.read_text())
]


@pytest.mark.parametrize(("file", "name", "method"), ASKED)
def test_no_route_goes_past_it(file: str, name: str, method: str) -> None:
    assert not hasattr(WHICH[name], method), file
    assert "port" not in dir(WHICH[name]), "an instance has it, not the class"
