"""A short drill: a standby that lacks sixty messages is promoted under load. Without the fence it fails."""

from __future__ import annotations

import asyncio

import pytest

from load.failover.__main__ import change
from load.verdict import Breach

BEHIND = 60


@pytest.mark.drill
@pytest.mark.parametrize("fenced", [True, False])
def test_a_promoted_standby_gives_no_id_two_meanings_and_tells_what_is_lost(
    fenced: bool,
) -> None:
    verdict = asyncio.run(change("standby", BEHIND, 1, fenced=fenced))
    assert verdict.ok is fenced, verdict.report()
    assert bool(verdict.counts[Breach.DISAGREE]) is not fenced
