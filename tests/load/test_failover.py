"""A short drill: a standby that lacks sixty messages is promoted under load. Without the fence it fails."""

from __future__ import annotations

import asyncio

import pytest

from load.failover.__main__ import drill

BEHIND = 60


@pytest.mark.timeout(240)
@pytest.mark.parametrize("fenced", [True, False])
def test_a_promoted_standby_gives_no_id_two_meanings_and_tells_what_is_lost(fenced: bool) -> None:
    found, line = asyncio.run(drill("standby", BEHIND, 1, fenced=fenced))
    assert bool(found) is not fenced, f"{line}: {found[:5]}"
