"""`SchedulePort` over a `MemoryLog`, with a place where a test may make it slow or fail."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence

from subscriptions.domain.delivery import Moment, Scheduled, Touched
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, Appended, NewMessage
from subscriptions.domain.principal import Principal
from tests.contract.memory import MemoryAppender, Pause, at_once
from tests.contract.memory_log import MemoryLog, Place


class MemorySchedule:
    """Implements `SchedulePort`."""

    def __init__(self, log: MemoryLog, *, create_channels: bool = True, pause: Pause = at_once) -> None:
        self.log = log
        self.waiting: dict[int, tuple[str, Scheduled]] = {}
        """By id: namespace and message."""
        self._create = create_channels
        self._pause = pause
        self._appender = MemoryAppender(log)
        self._ids = itertools.count(1)
        self._keys: dict[Place, tuple[bytes, list[Scheduled]]] = {}

    async def schedule(
        self,
        namespace: str,
        messages: Sequence[NewMessage],
        moments: Sequence[Moment],
        idempotency_key: str | None,
        fingerprint: bytes,
        by: Principal | None = None,
    ) -> tuple[list[Scheduled], bool]:
        await self._pause("schedule")
        if not self._create and (namespace, messages[0].channel) not in self.log.rows:
            raise GaplessError(Code.CHANNEL_NOT_FOUND, "a channel does not exist")
        if idempotency_key is not None and (known := self._keys.get((namespace, idempotency_key))):
            if known[0] != fingerprint:
                raise GaplessError(Code.IDEMPOTENCY_MISMATCH, "this key was used for another request")
            return known[1], True
        now_us = self.log.now_us()
        stored = [
            Scheduled(next(self._ids), message, _moment_us(moment, now_us), now_us)
            for message, moment in zip(messages, moments, strict=True)
        ]
        self.waiting |= {each.id: (namespace, each) for each in stored}
        if idempotency_key is not None:
            self._keys[namespace, idempotency_key] = fingerprint, stored
        return stored, False

    async def get(self, namespace: str, scheduled_id: int) -> Scheduled:
        await self._pause("get")
        return self._one(namespace, scheduled_id)

    async def page(
        self, namespace: str, channel: str | None, after: int, limit: int, names_regex: str | None = None
    ) -> list[Scheduled]:
        await self._pause("page")
        found = [s for ns, s in self.waiting.values() if ns == namespace and s.id > after]
        named = [s for s in found if re.search(names_regex or "", s.message.channel)]
        return [s for s in named if channel in (None, s.message.channel)][:limit]

    async def cancel(self, namespace: str, scheduled_id: int) -> None:
        await self._pause("cancel")
        del self.waiting[self._one(namespace, scheduled_id).id]

    async def promote(self, namespace: str, scheduled_id: int) -> tuple[Appended, tuple[Touched, ...]]:
        await self._pause("promote")
        taken = self._one(namespace, scheduled_id)
        del self.waiting[scheduled_id]
        return await self._publish(namespace, [taken])

    async def publish_due(self, namespaces: Collection[str], limit: int) -> tuple[int, tuple[Touched, ...]]:
        await self._pause("publish_due")
        now_us = self.log.now_us()
        due = sorted(
            (s.deliver_at_us, s.id, namespace)
            for namespace, s in self.waiting.values()
            if namespace in namespaces and s.deliver_at_us <= now_us
        )[:limit]
        touched: list[Touched] = []
        for namespace in dict.fromkeys(place for _, _, place in due):
            mine = [self.waiting.pop(id_)[1] for _, id_, place in due if place == namespace]
            touched += (await self._publish(namespace, mine))[1]
        return len(due), tuple(touched)

    async def _publish(
        self, namespace: str, scheduled: list[Scheduled]
    ) -> tuple[Appended, tuple[Touched, ...]]:
        (answer,) = await self._appender.append([Append(namespace, tuple(s.message for s in scheduled))])
        assert isinstance(answer, Appended), answer
        rows = [self.log.rows[namespace, c] for c in dict.fromkeys(s.message.channel for s in scheduled)]
        return answer, tuple(Touched(namespace, r.name, r.id, r.last_id, r.last_seq) for r in rows)

    def _one(self, namespace: str, scheduled_id: int) -> Scheduled:
        there, scheduled = self.waiting.get(scheduled_id, ("", None))
        if scheduled is None or there != namespace:
            raise GaplessError(Code.MESSAGE_NOT_FOUND, f"scheduled message not found: {scheduled_id}")
        return scheduled


def _moment_us(moment: Moment, now_us: int) -> int:
    at_us, delay = moment
    return now_us + round((delay or 0.0) * 1_000_000) if at_us is None else at_us
