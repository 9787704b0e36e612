"""One suite over every implementation of the ports: the log in memory and the real one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import asyncpg
import pytest

from app.embedded import EmbeddedPostgres
from db.appender import Appender
from db.channels import Channels
from db.connect import DatabaseConfig, Pool
from db.history import History
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.model import Append, Appended, NewMessage
from subscriptions.ports import AppendPort, ChannelPort, HistoryPort, ReadPort
from tests.conftest import drop_database, make_database
from tests.contract.limits import long_limits
from tests.contract.memory import MemoryAppender, MemoryChannels, MemoryHistory, MemoryReader
from tests.contract.memory_log import MemoryLog, Transaction
from tests.race.support import IMMEDIATE, publish, reader, sessions, wait_for_the_database


class Held(Protocol):
    """A publishing transaction that has taken its ids and not ended."""

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Log:
    """An empty log through its ports, and what only time and administrators do to it."""

    appenders: list[AppendPort]
    careful: AppendPort
    """Makes no channels."""
    read: ReadPort
    history: HistoryPort
    channels: ChannelPort
    age_keys: Callable[[float], Awaitable[None]]
    trim: Callable[[str, int], Awaitable[None]]
    hold: Callable[[str], Awaitable[Held]]

    async def store(self, *requests: Append) -> list[Appended]:
        """Requests that must be stored, or replayed."""
        answers = await self.appenders[0].append(requests)
        assert not any(isinstance(a, GaplessError) for a in answers), answers
        return [a for a in answers if isinstance(a, Appended)]

    async def settled(self) -> int:
        """The last id taken, with nobody publishing."""
        tick = await self.read.tick()
        assert not tick.holders
        return tick.last_id


def request(
    *channels: str, key: str | None = None, body: bytes = b"b", expected: int | None = None
) -> Append:
    """One message to each of these channels."""
    messages = tuple(NewMessage(channel, b'{"to": "%s"}' % channel.encode()) for channel in channels)
    return Append("default", messages, key, body if key else b"", expected)


@pytest.fixture(autouse=True)
def patient_service(monkeypatch: pytest.MonkeyPatch) -> None:
    """A healthy Postgres may answer late, too."""
    wait_for_the_database(monkeypatch)


@pytest.fixture
def patient() -> Iterator[None]:
    """A healthy Redis may answer late. For tests of what speaks to one."""
    with long_limits():
        yield


@pytest.fixture(params=["memory", "postgres"])
async def log(request: pytest.FixtureRequest, postgres: EmbeddedPostgres) -> AsyncIterator[Log]:
    """An empty log."""
    if request.param == "memory":
        yield _memory()
        return
    async with _postgres(postgres) as made:
        yield made


class _HeldInMemory:
    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    async def commit(self) -> None:
        self._transaction.commit()

    async def rollback(self) -> None:
        self._transaction.rollback()


def _memory() -> Log:
    log = MemoryLog()

    async def age_keys(hours: float) -> None:
        log.age_keys(hours)

    async def trim(channel: str, keep: int) -> None:
        log.trim(("default", channel), keep)

    async def hold(channel: str) -> Held:
        transaction = log.begin([request(channel)])
        await transaction.lock()
        await transaction.take()
        return _HeldInMemory(transaction)

    return Log(
        appenders=[MemoryAppender(log) for _ in range(4)],
        careful=MemoryAppender(log, create_channels=False),
        read=MemoryReader(log),
        history=MemoryHistory(log),
        channels=MemoryChannels(log),
        age_keys=age_keys,
        trim=trim,
        hold=hold,
    )


@asynccontextmanager
async def _postgres(postgres: EmbeddedPostgres) -> AsyncIterator[Log]:
    database = await make_database(postgres)
    config = DatabaseConfig(database.service_url)
    appenders = [Appender(config) for _ in range(4)]
    careful = Appender(config, create_channels=False)
    pool = Pool(config, application="test", size=2)
    async with sessions(database.owner_url, 2) as (owner, holder), reader(database) as read:
        yield Log(
            appenders=list(appenders),
            careful=careful,
            read=read,
            history=History(pool),
            channels=Channels(pool),
            age_keys=lambda hours: _age_keys(owner, hours),
            trim=lambda channel, keep: _trim(owner, channel, keep),
            hold=lambda channel: _hold(holder, channel),
        )
    for appender in (*appenders, careful):
        appender.terminate()
    await pool.close()
    await drop_database(postgres, database)


async def _age_keys(owner: asyncpg.Connection, hours: float) -> None:
    await owner.execute(
        "update gapless.idempotency set stored_at = stored_at - $1 * interval '1 hour'", hours
    )


async def _trim(owner: asyncpg.Connection, channel: str, keep: int) -> None:
    """By the rule that retention follows, which is then taken back."""
    await owner.execute("update gapless.channels set max_messages = $2 where name = $1", channel, keep)
    await owner.execute("select gapless.trim_channels(1000)")
    await owner.execute("update gapless.channels set max_messages = null where name = $1", channel)


async def _hold(session: asyncpg.Connection, channel: str) -> Held:
    transaction = session.transaction()
    await transaction.start()
    await publish(session, channel)
    await session.execute(IMMEDIATE)
    return transaction
