"""Other processes are told who joined or left once the pages say so."""

from __future__ import annotations

from tests.contract.memory_bus import MemoryHub
from tests.contract.memory_log import MemoryLog
from tests.contract.memory_presence import MemoryPresenceHub
from tests.contract.showing import client
from tests.engine.test_presence import Host
from tests.patience import eventually


async def test_a_hint_comes_after_what_it_says_is_on_the_page() -> None:
    """A reader that comes after the hint asks for the page, and nobody tells it again. Readers of the same
    process do not wait: its pages are written first."""
    log, bus, hub = MemoryLog(), MemoryHub(), MemoryPresenceHub()
    async with Host(log, bus, hub).running() as one, Host(log, bus, hub).running() as two:
        await eventually(lambda: one.exchange.heard and two.exchange.heard)
        await one.read(client())
        await two.read(client())
        await eventually(lambda: one.told)
        hub.writes.clear()
        waited, late = hub.waiting, client()
        two.presence.join(late, await two.crowd(0), None)
        await eventually(lambda: f"+{late.id}" in two.told)
        await eventually(lambda: hub.waiting > waited)
        assert f"+{late.id}" not in one.told
        hub.writes.set()
        await eventually(lambda: f"+{late.id}" in one.told)
