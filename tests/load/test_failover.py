"""A short drill: a standby that lacks sixty messages is promoted under load. Without the fence it fails."""

from __future__ import annotations

import asyncio
from functools import partialmethod

import pytest

from load.failover.__main__ import change
from load.failover.crowd import Crowd
from load.verdict import Breach
from tests.patience import PATIENCE_S

BEHIND = 60


@pytest.mark.drill
@pytest.mark.parametrize("fenced", [True, False])
def test_a_promoted_standby_gives_no_id_two_meanings_and_tells_what_is_lost(
    fenced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fenced:  # Without the fence some may wait in vain.
        monkeypatch.setattr(Crowd, "drain", partialmethod(Crowd.drain, patience_s=PATIENCE_S))
    verdict = asyncio.run(change("standby", BEHIND, 1, fenced=fenced))
    assert verdict.ok is fenced, verdict.report()
    assert bool(verdict.counts[Breach.DISAGREE]) is not fenced
