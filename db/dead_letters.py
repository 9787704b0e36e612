"""Implements `DeadLetterPort`: listing, replaying and purging dead letters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from db.connect import Pool
from db.namespaces import Namespaces
from db.reader import PAGE_BYTES
from db.rows import message
from db.subscriptions import no_subscription
from subscriptions.domain.delivery import DeadLetter, DeadLetterFilter, Reason
from subscriptions.domain.errors import Code, GaplessError, unavailable
from subscriptions.domain.model import EPOCH, microseconds

REPLAY_BATCH = 500
PURGE_BATCH = 5_000
ATTEMPTS = 5
_DONE, _GONE, _NO_SUBSCRIPTION = range(3)


class DeadLetters:
    """The list of dead letters over one pool. Large replays and purges run in batches, each in a transaction
    of its own: one that is interrupted has done whole batches."""

    def __init__(self, pool: Pool, namespaces: Namespaces) -> None:
        self._pool = pool
        self._namespaces = namespaces

    async def page(
        self, which: DeadLetterFilter, after: int, limit: int, names_regex: str | None = None
    ) -> list[DeadLetter]:
        rows = await self._pool.fetch(
            "dead_letters",
            await self._namespaces.id(which.namespace),
            which.subscription,
            which.channel,
            which.reason,
            after,
            limit,
            PAGE_BYTES,
            names_regex,
        )
        return [_dead_letter(row) for row in rows]

    async def get(self, namespace: str, dead_letter_id: int) -> DeadLetter:
        row = await self._pool.fetchrow("dead_letter", await self._namespaces.id(namespace), dead_letter_id)
        if row is None:
            raise _gone(dead_letter_id)
        return _dead_letter(row)

    async def delete(self, namespace: str, dead_letter_id: int) -> None:
        namespace_id = await self._namespaces.id(namespace)
        if not await self._pool.fetchval("delete_dead_letter", namespace_id, dead_letter_id):
            raise _gone(dead_letter_id)

    async def replay(self, namespace: str, dead_letter_id: int) -> tuple[str, int]:
        row = await self._pool.fetchrow("replay", await self._namespaces.id(namespace), dead_letter_id)
        if row["status"] == _GONE:
            raise _gone(dead_letter_id)
        if row["status"] == _NO_SUBSCRIPTION:
            raise no_subscription(row["subscription"])
        return row["subscription"], row["message_id"]

    async def replay_all(
        self, which: DeadLetterFilter, most: int | None = None, rate: float | None = None
    ) -> tuple[int, int]:
        matching = await self._matching(which)
        # Messages that die again meanwhile get ids above this, so a replay ends even if all of them fail.
        upto = await self._pool.fetchval("last_dead_letter", matching[0])
        replayed = after = 0
        begun = None
        while most is None or replayed < most:
            limit = REPLAY_BATCH if most is None else min(REPLAY_BATCH, most - replayed)
            row = await self._replay_some(*matching, after, upto, limit, rate, replayed, begun)
            if row["reached"] is None:
                break
            replayed += row["replayed"]
            after, begun = row["reached"], row["begun"]
        else:
            upto = after
        skipped = await self._pool.fetchval("count_dead_letters", *matching, upto)
        return replayed, skipped

    async def _replay_some(self, *asked: object) -> Any:
        """Again if a subscription was deleted before the commit: its dead letters are passed over then."""
        for _ in range(ATTEMPTS):
            try:
                return await self._pool.fetchrow("replay_some", *asked)
            except GaplessError as error:
                if error.code is not Code.SUBSCRIPTION_NOT_FOUND:
                    raise
        raise unavailable("subscriptions are being deleted; this part was not replayed")

    async def replayable(self, which: DeadLetterFilter, most: int | None = None) -> tuple[int, int]:
        row = await self._pool.fetchrow("replayable", *await self._matching(which), most)
        return row["replayed"], row["skipped"]

    async def purge(self, which: DeadLetterFilter) -> int:
        before = None if which.before_us is None else EPOCH + timedelta(microseconds=which.before_us)
        matching = (*await self._matching(which), before)
        purged = 0
        while True:
            done = int(await self._pool.fetchval("purge_dead_letters", *matching, PURGE_BATCH))
            purged += done
            if done < PURGE_BATCH:
                return purged

    async def _matching(self, which: DeadLetterFilter) -> tuple[object, ...]:
        """The filter as arguments of the statements."""
        return (
            await self._namespaces.id(which.namespace),
            which.subscription,
            which.channel,
            which.reason,
            None if which.ids is None else list(which.ids),
        )


def _dead_letter(row: Any) -> DeadLetter:
    published = row["published"]
    return DeadLetter(
        id=row["dead_letter_id"],
        subscription=row["subscription"],
        reason=Reason(row["reason"]),
        attempts=row["attempts"],
        last_error=row["last_error"],
        created_at_us=microseconds(row["died_at"]),
        journey=row["journey"].encode(),
        message=message(row, row["channel"]),
        published=None if published is None else published.encode(),
        unroutable=row["unroutable"],
    )


def _gone(dead_letter_id: int) -> GaplessError:
    return GaplessError(Code.DEAD_LETTER_NOT_FOUND, f"dead letter entry not found: {dead_letter_id}")
