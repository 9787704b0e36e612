"""How the engine finds subscriptions, over every adapter."""

from __future__ import annotations

import pytest

from subscriptions.domain.errors import Code, GaplessError
from tests.contract.bench import Bench
from tests.contract.test_deliveries import bench

__all__ = ["bench"]


async def test_a_subscription_is_found_by_its_name_and_by_its_id(bench: Bench) -> None:
    made = await bench.store.subscribe("q", "a", "b.*", ordering="channel", max_in_flight=7)
    await bench.store.subscribe("other")
    found = await bench.lookup.get("default", "q", stats=False)
    assert (found.id, found.name, found.channels, found.paused) == (made.id, "q", ("a", "b.*"), False)
    assert (found.settings["ordering"], found.settings["max_in_flight"]) == ("channel", 7)
    assert [each.name for each in await bench.lookup.by_id([made.id])] == ["q"]


async def test_what_is_not_there_is_not_found(bench: Bench) -> None:
    made = await bench.store.subscribe("q")
    await bench.store.delete("q")
    with pytest.raises(GaplessError) as refused:
        await bench.lookup.get("default", "q", stats=False)
    assert refused.value.code is Code.SUBSCRIPTION_NOT_FOUND
    assert await bench.lookup.by_id([made.id, made.id + 1]) == []
    assert await bench.lookup.by_id([]) == []


async def test_what_changed_is_found_changed(bench: Bench) -> None:
    made = await bench.store.subscribe("q")
    await bench.store.pause("q", True)
    await bench.store.change("q", max_in_flight=3)
    (found,) = await bench.lookup.by_id([made.id])
    assert (found.paused, found.settings["max_in_flight"]) == (True, 3)
    assert (await bench.lookup.get("default", "q", stats=False)).paused
