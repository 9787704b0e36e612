"""What every race over durable subscriptions begins with."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.conftest import Database
from tests.race.laws import check_queues
from tests.race.queues import Queues, open_queues
from tests.race.support import sessions, wait_for_locks, wait_for_the_database


@pytest.fixture
def as_it_is() -> None:
    """For tests of the limits themselves, and of maintenance, which gives up a lock that publishers hold and
    begins again: the database keeps the limits of the product."""


@pytest.fixture
async def database(database: Database, request: pytest.FixtureRequest) -> Database:
    """Functions give up a lock that they do not get within 0.2 s or 1 s, and a publisher is ended after 5 s.
    Here everybody waits, however busy the machine is."""
    if "as_it_is" not in request.fixturenames:
        async with sessions(database.owner_url, 1) as (owner,):
            await wait_for_locks(owner)
    return database


@pytest.fixture(autouse=True)
def patient_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives up a database that does not answer within 5 s."""
    wait_for_the_database(monkeypatch)


@pytest.fixture
async def queues(database: Database) -> AsyncIterator[Queues]:
    """The adapters over an empty database. What always holds is looked at when the test ends."""
    async with open_queues(database) as made:
        yield made
        await check_queues(made.owner)
