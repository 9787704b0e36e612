"""What every race over durable subscriptions begins with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conftest import Database
from tests.race.laws import check_queues
from tests.race.queues import Queues, open_queues


@pytest.fixture
async def queues(database: Database) -> AsyncIterator[Queues]:
    """The adapters over an empty database. What always holds is looked at when the test ends."""
    async with open_queues(database) as made:
        yield made
        await check_queues(made.owner)
