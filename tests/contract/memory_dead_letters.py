"""`DeadLetterPort` over `MemoryQueues`, with a place where a test may make it slow or fail."""

from __future__ import annotations

import re

from subscriptions.domain.delivery import DeadLetter, DeadLetterFilter
from subscriptions.domain.errors import Code, GaplessError
from tests.contract.memory import Pause, at_once
from tests.contract.memory_burial import Entry
from tests.contract.memory_queues import MemoryQueues, Queue


class MemoryDeadLetters:
    """Implements `DeadLetterPort`."""

    def __init__(self, queues: MemoryQueues, pause: Pause = at_once) -> None:
        self._queues = queues
        self._pause = pause

    async def page(
        self, which: DeadLetterFilter, after: int, limit: int, names_regex: str | None = None
    ) -> list[DeadLetter]:
        await self._pause("page")
        found = [entry.letter for entry in self._matching(which) if entry.letter.id > after]
        return [each for each in found if re.search(names_regex or "", each.subscription)][:limit]

    async def get(self, namespace: str, dead_letter_id: int) -> DeadLetter:
        await self._pause("get")
        return self._one(namespace, dead_letter_id).letter

    async def delete(self, namespace: str, dead_letter_id: int) -> None:
        await self._pause("delete")
        del self._queues.entries[self._one(namespace, dead_letter_id).letter.id]

    async def replay(self, namespace: str, dead_letter_id: int) -> tuple[str, int]:
        await self._pause("replay")
        letter = self._one(namespace, dead_letter_id).letter
        queue = self._queues.find(namespace, letter.subscription)
        if queue is None or not await self._give_back(queue, [dead_letter_id], None):
            self._one(namespace, dead_letter_id)
            detail = f"subscription {letter.subscription} does not exist"
            raise GaplessError(Code.SUBSCRIPTION_NOT_FOUND, detail)
        return letter.subscription, letter.message.id

    async def replay_all(
        self, which: DeadLetterFilter, most: int | None = None, rate: float | None = None
    ) -> tuple[int, int]:
        await self._pause("replay_all")
        chosen, skipped = self._chosen(which, most)
        begun_us = self._queues.log.now_us()
        due_us = {
            entry.letter.id: begun_us + round(n * 1_000_000 / rate) if rate is not None else begun_us
            for n, entry in enumerate(chosen)
        }
        replayed = 0
        for name in dict.fromkeys(entry.letter.subscription for entry in chosen):
            ids = [entry.letter.id for entry in chosen if entry.letter.subscription == name]
            queue = self._queues.find(which.namespace, name)
            replayed += 0 if queue is None else await self._give_back(queue, ids, due_us)
        return replayed, skipped

    async def replayable(self, which: DeadLetterFilter, most: int | None = None) -> tuple[int, int]:
        await self._pause("replayable")
        chosen, skipped = self._chosen(which, most)
        return len(chosen), skipped

    async def purge(self, which: DeadLetterFilter) -> int:
        await self._pause("purge")
        gone = self._matching(which)
        for entry in gone:
            del self._queues.entries[entry.letter.id]
        return len(gone)

    async def _give_back(self, queue: Queue, ids: list[int], due_us: dict[int, int] | None) -> int:
        """Those that are still there when nobody else decides; how many. `due_us`: now, without it."""
        async with queue.lock:
            if queue.subscription.id not in self._queues.queues:
                return 0
            entries = [self._queues.entries.pop(id_) for id_ in ids if id_ in self._queues.entries]
            now_us = self._queues.log.now_us()
            first: dict[int, Entry] = {}
            for entry in entries:
                # One message may have died several times, in a subscription that was moved back.
                if first.setdefault(entry.letter.message.id, entry) is entry:
                    at_us = now_us if due_us is None else due_us[entry.letter.id]
                    self._queues.give_back(queue, entry, now_us, at_us)
            return len(entries)

    def _chosen(self, which: DeadLetterFilter, most: int | None) -> tuple[list[Entry], int]:
        """What a replay gives back, and how many it skips on its way."""
        chosen: list[Entry] = []
        skipped = 0
        for entry in self._matching(which):
            if len(chosen) == most:
                break
            if self._queues.find(entry.namespace, entry.letter.subscription) is None:
                skipped += 1
            else:
                chosen.append(entry)
        return chosen, skipped

    def _matching(self, which: DeadLetterFilter) -> list[Entry]:
        """By id."""
        entries = [self._queues.entries[id_] for id_ in sorted(self._queues.entries)]
        return [
            e
            for e in entries
            if e.namespace == which.namespace
            and which.subscription in (None, e.letter.subscription)
            and which.channel in (None, e.letter.message.channel)
            and which.reason in (None, e.letter.reason)
            and (which.before_us is None or e.letter.created_at_us < which.before_us)
            and (which.ids is None or e.letter.id in which.ids)
        ]

    def _one(self, namespace: str, dead_letter_id: int) -> Entry:
        entry = self._queues.entries.get(dead_letter_id)
        if entry is None or entry.namespace != namespace:
            raise GaplessError(Code.DEAD_LETTER_NOT_FOUND, f"dead letter entry not found: {dead_letter_id}")
        return entry
