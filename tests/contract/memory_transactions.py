"""`TransactionPort` over `MemoryQueues` and their log, with a place where a test may make it slow or fail."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from subscriptions.domain.delivery import Receipt
from subscriptions.domain.errors import Code, FieldError, GaplessError
from subscriptions.domain.model import Append, Appended
from tests.contract.memory import Pause, at_once
from tests.contract.memory_log import ConflictError, CrashedError
from tests.contract.memory_queues import MemoryQueues, Queue, Row


class MemoryTransactions:
    """Implements `TransactionPort`: the subscriptions are locked first, then what is published to."""

    def __init__(self, queues: MemoryQueues, *, create_channels: bool = True, pause: Pause = at_once) -> None:
        self._queues = queues
        self._create = create_channels
        self._pause = pause

    async def transact(
        self, append: Append | None, receipts: Sequence[Receipt], places: Sequence[str]
    ) -> Appended:
        await self._pause("transact")
        # What has begun goes on whatever becomes of its caller, as in a database.
        answer = await asyncio.shield(asyncio.ensure_future(self._transact(append, receipts, places)))
        await self._pause("transact, done")
        return answer

    async def _transact(
        self, append: Append | None, receipts: Sequence[Receipt], places: Sequence[str]
    ) -> Appended:
        async with AsyncExitStack() as locks:
            for id_ in sorted({receipt.subscription_id for receipt in receipts}):
                if id_ in self._queues.queues:
                    await locks.enter_async_context(self._queues.queues[id_].lock)
            while True:
                try:
                    return await self._once(append, receipts, places)
                except ConflictError:
                    continue
                except CrashedError as error:
                    raise GaplessError(Code.UNAVAILABLE, "the database went down") from error

    async def _once(
        self, append: Append | None, receipts: Sequence[Receipt], places: Sequence[str]
    ) -> Appended:
        batch = [] if append is None else [append]
        transaction = self._queues.log.begin(batch, create=self._create)
        try:
            await transaction.lock()
            answer, *_ = [*await transaction.take(), Appended(())]
            if isinstance(answer, GaplessError):
                raise answer
            held = [] if answer.replayed else self._held(receipts, places)
            transaction.commit()
        except BaseException:
            transaction.rollback()
            raise
        for queue, row in held:
            queue.drop([row], self._queues.log.now_us())
            queue.acked.append(row.message.id)
        return answer

    def _held(self, receipts: Sequence[Receipt], places: Sequence[str]) -> list[tuple[Queue, Row]]:
        """Each of them once, or the refusal that names the others."""
        now_us = self._queues.log.now_us()
        held: dict[tuple[int, int], tuple[Queue, Row]] = {}
        stale: list[FieldError] = []
        for receipt, place in zip(receipts, places, strict=True):
            queue = self._queues.queues.get(receipt.subscription_id)
            row = None if queue is None else queue.held(receipt, now_us)
            lease = (receipt.subscription_id, receipt.message_id)
            if queue is None or row is None or lease in held:
                stale.append(FieldError(place, "holds no lease (any more)"))
            else:
                held[lease] = queue, row
        if stale:
            detail = f"{len(stale)} of {len(places)} receipts hold no lease"
            raise GaplessError(Code.TRANSACTION_CONFLICT, detail, errors=tuple(stale[:100]))
        return list(held.values())
