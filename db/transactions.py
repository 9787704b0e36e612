"""Publishes and acks in one transaction: consume, transform and produce exactly once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

import asyncpg
import msgspec

from db.appender import ATTEMPTS, answers_of, arguments_of
from db.connect import FAILURES, PUBLISH_TIMEOUT_S, QUERIES, Pool, translate
from db.namespaces import Namespaces
from db.queries import load
from subscriptions.domain.delivery import Receipt
from subscriptions.domain.errors import Code, FieldError, GaplessError, unavailable
from subscriptions.domain.model import Append, Appended

log = logging.getLogger(__name__)

STALE: Final = "GL409"
_NOTHING: Final[tuple[Any, ...]] = (
    [],
    [],
    True,
    None,
    None,
    None,
    None,
    None,
    *(["{}"] * 2),
    *([[]] * 7),
    None,
    None,
    None,
)
"""Arguments of `gapless.append_messages` for no messages."""
_AGAIN: Final = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)


class Transactions:
    """Implements `TransactionPort` over one pool. Its statements need the same timeouts as publishers."""

    def __init__(self, pool: Pool, namespaces: Namespaces, *, create_channels: bool) -> None:
        self._pool = pool
        self._namespaces = namespaces
        self._create = create_channels
        self._sql = load()["transact"]

    async def transact(
        self, append: Append | None, receipts: Sequence[Receipt], places: Sequence[str]
    ) -> Appended:
        """Publish and ack all or nothing. `places` names each receipt for the caller: `ack[0].receipts[2]`.

        Raises `transaction_conflict` when a receipt holds no lease, the errors of `AppendPort.append` for one
        request, and `unavailable`. If the answer was lost, the transaction happened once or not at all.
        """
        names: list[tuple[str, str]] = []
        arguments = _NOTHING
        if append is not None:
            ids = {append.namespace: await self._namespaces.id(append.namespace)}
            names, arguments = arguments_of([append], ids, self._create)
        columns = (
            [r.subscription_id for r in receipts],
            [r.message_id for r in receipts],
            [r.lease for r in receipts],
        )
        row = await self._run(columns + arguments, places, keyed=bool(append and append.idempotency_key))
        if append is None:
            return Appended(())
        answer = answers_of([append], names, row)[0]
        if isinstance(answer, GaplessError):
            raise answer
        return answer

    async def _run(self, arguments: tuple[Any, ...], places: Sequence[str], *, keyed: bool) -> Any:
        for attempt in count(1):
            QUERIES.labels("transact").inc()
            try:
                async with self._pool.acquire() as connection, asyncio.timeout(PUBLISH_TIMEOUT_S + 2):
                    return await connection.fetchrow(self._sql, *arguments)
            except _AGAIN:
                if attempt >= ATTEMPTS:
                    raise unavailable("too many concurrent writers; nothing was done") from None
            except FAILURES as error:
                if getattr(error, "sqlstate", None) == STALE:
                    raise _conflict(error, places) from None
                if isinstance(error, asyncpg.DataError | asyncpg.ProgramLimitExceededError):
                    detail = "the database cannot hold this; nothing was done"
                    raise GaplessError(Code.INVALID_REQUEST, detail) from error
                if isinstance(error, asyncpg.PostgresError) and not isinstance(
                    error, asyncpg.PostgresConnectionError
                ):
                    log.warning("transaction failed: %s", error)
                    raise translate(error) from error
                if attempt >= ATTEMPTS or not keyed:
                    raise unavailable(
                        "the connection was lost while committing: all of it was done or nothing; repeat the"
                        " request with an Idempotency-Key to be sure"
                    ) from error
        raise AssertionError("unreachable")


def _conflict(error: BaseException, places: Sequence[str]) -> GaplessError:
    stale: list[int] = msgspec.json.decode(getattr(error, "detail", None) or "[]")
    errors = tuple(FieldError(places[n - 1], "holds no lease (any more)") for n in stale)
    return GaplessError(
        Code.TRANSACTION_CONFLICT,
        f"{len(stale)} of {len(places)} receipts hold no lease; nothing was published and nothing acked",
        errors=errors[:100],
    )
