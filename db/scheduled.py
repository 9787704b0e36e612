"""Implements `SchedulePort`: storing, publishing and cancelling scheduled messages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from db.appender import refused_change
from db.connect import Pool
from db.namespaces import Namespaces
from db.reader import PAGE_BYTES
from subscriptions.domain.delivery import Moment, Scheduled, Touched
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import EPOCH, Appended, Change, NewMessage, Position, microseconds
from subscriptions.domain.principal import Principal

BATCH_BYTES = 8 * 1024 * 1024
_STORED, _REPLAYED, _MISMATCH = range(3)


class Schedule:
    """Scheduled messages over one pool. Its statements need the same timeouts as publishers."""

    def __init__(self, pool: Pool, namespaces: Namespaces, *, create_channels: bool) -> None:
        self._pool = pool
        self._namespaces = namespaces
        self._create = create_channels

    async def schedule(
        self,
        namespace: str,
        messages: Sequence[NewMessage],
        moments: Sequence[Moment],
        idempotency_key: str | None,
        fingerprint: bytes,
        by: Principal | None = None,
    ) -> tuple[list[Scheduled], bool]:
        until_us = None if by is None else by.expires_at_us
        row = await self._pool.fetchrow(
            "schedule",
            None if by is None else by.key_id,
            None if until_us is None else EPOCH + timedelta(microseconds=until_us),
            await self._namespaces.id(namespace),
            messages[0].channel,
            self._create,
            idempotency_key,
            fingerprint,
            *_moments(moments),
            *_contents(messages),
        )
        if row["status"] == _MISMATCH:
            detail = "this Idempotency-Key was used for another request within 24 hours"
            raise GaplessError(Code.IDEMPOTENCY_MISMATCH, detail)
        if row["scheduled_ids"] is None:
            detail = "a channel does not exist and is not made by publishing here"
            raise GaplessError(Code.CHANNEL_NOT_FOUND, detail)
        created_at_us = microseconds(row["created_at"])
        stored = [
            Scheduled(id_, message, microseconds(at), created_at_us)
            for id_, message, at in zip(row["scheduled_ids"], messages, row["deliver_at"], strict=True)
        ]
        return stored, row["status"] == _REPLAYED

    async def get(self, namespace: str, scheduled_id: int) -> Scheduled:
        row = await self._pool.fetchrow("scheduled_one", await self._namespaces.id(namespace), scheduled_id)
        if row is None:
            raise _gone(scheduled_id)
        return _scheduled(row)

    async def page(
        self, namespace: str, channel: str | None, after: int, limit: int, names_regex: str | None = None
    ) -> list[Scheduled]:
        namespace_id = await self._namespaces.id(namespace)
        asked = (namespace_id, channel, after, limit, PAGE_BYTES, names_regex)
        rows = await self._pool.fetch("scheduled_page", *asked)
        return [_scheduled(row) for row in rows]

    async def cancel(self, namespace: str, scheduled_id: int) -> None:
        namespace_id = await self._namespaces.id(namespace)
        if not await self._pool.fetchval("cancel_scheduled", namespace_id, scheduled_id):
            raise _gone(scheduled_id)

    async def promote(self, namespace: str, scheduled_id: int) -> tuple[Appended, tuple[Touched, ...]]:
        namespace_id = await self._namespaces.id(namespace)
        row = await self._pool.fetchrow("publish_now", namespace_id, scheduled_id)
        if row["id"] is None:
            raise refused_change(row["status"]) if row["status"] else _gone(scheduled_id)
        position = Position(row["id"], row["channel"], row["seq"], microseconds(row["created_at"]))
        return Appended((position,)), await self._namespaces.touched(row["touched"])

    async def publish_due(self, namespaces: Collection[str], limit: int) -> tuple[int, tuple[Touched, ...]]:
        ids = await self._namespaces.ids(namespaces)
        row = await self._pool.fetchrow("publish_due", ids, limit, BATCH_BYTES)
        return row["done"], await self._namespaces.touched(row["touched"])


def _moments(moments: Sequence[Moment]) -> tuple[list[object], list[object]]:
    """Two columns for the statement: times, and delays where there is no time."""
    times = [None if at is None else EPOCH + timedelta(microseconds=at) for at, _ in moments]
    return [*times], [delay for _, delay in moments]


def _contents(messages: Sequence[NewMessage]) -> tuple[list[object], ...]:
    """The messages as columns for the statement."""
    changes = [message.change for message in messages]
    return (
        [message.type for message in messages],
        [message.key for message in messages],
        [message.sender for message in messages],
        [message.headers.decode() or None for message in messages],
        [None if message.data is None else message.data.decode() for message in messages],
        [message.binary for message in messages],
        [message.ttl for message in messages],
        [None if change is None else change.text.decode() for change in changes],
        [None if change is None else change.version for change in changes],
        [None if change is None else change.moderates for change in changes],
    )


def _scheduled(row: Any) -> Scheduled:
    message = NewMessage(
        channel=row["channel"],
        data=None if row["data"] is None else row["data"].encode(),
        binary=row["binary"],
        type=row["type"],
        key=row["key"],
        headers=(row["headers"] or "").encode(),
        ttl=row["ttl"],
        sender=row["sender"],
        change=_change(row),
    )
    at_us, created_at_us = microseconds(row["deliver_at"]), microseconds(row["created_at"])
    refused = None if row["refused"] is None else refused_change(row["refused"]).code
    return Scheduled(row["id"], message, at_us, created_at_us, row["withheld"], refused)


def _change(row: Any) -> Change | None:
    if row["change"] is None:
        return None
    return Change(row["change"].encode(), row["version"], row["moderates"])


def _gone(scheduled_id: int) -> GaplessError:
    return GaplessError(Code.MESSAGE_NOT_FOUND, f"scheduled message not found: {scheduled_id}")
