"""The ports over a `MemoryLog`, with places where a test may make them slow or fail."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime

from subscriptions.domain.delivery import Tags
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, Appended, Channel, Message, Retention
from subscriptions.domain.pattern import compile_pattern
from subscriptions.domain.selection import Selection
from subscriptions.domain.watermark import Fence, Tick
from subscriptions.ports import NO_PLACE, Head, HistoryPage, HistoryQuery, Lost, Page, Place, Span, Trim
from tests.contract.memory_log import ConflictError, CrashedError, MemoryLog, Row
from tests.contract.memory_settings import changed

Pause = Callable[[str], Awaitable[None]]
"""Called with a step's name before it and after it: may take time, or raise as the step would."""
EXPORT_BATCH = 1000


async def at_once(step: str) -> None:
    """The pause of a log that answers at once, yet not before others had their turn."""
    await asyncio.sleep(0)


def microseconds(time: datetime) -> int:
    """Microseconds since the Unix epoch."""
    return round(time.timestamp() * 1_000_000)


class MemoryAppender:
    """Implements `AppendPort`."""

    def __init__(self, log: MemoryLog, *, create_channels: bool = True, pause: Pause = at_once) -> None:
        self._log = log
        self._create = create_channels
        self._pause = pause

    async def append(self, batch: Sequence[Append]) -> list[Appended | GaplessError]:
        """One transaction; begun again when another one was faster with a key."""
        while True:
            transaction = self._log.begin(batch, create=self._create)
            try:
                await self._pause("lock")
                await transaction.lock()
                await self._pause("take")
                answers = await transaction.take()
                await self._pause("commit")
                transaction.commit()
            except ConflictError:
                transaction.rollback()
                await self._pause("again")
                continue
            except CrashedError as error:
                raise GaplessError(Code.UNAVAILABLE, "the database went down") from error
            except BaseException:
                transaction.rollback()
                raise
            await self._pause("answer")
            return answers


class MemoryReader:
    """Implements `ReadPort`: what is read is what was there between the two pauses."""

    def __init__(self, log: MemoryLog, pause: Pause = at_once) -> None:
        self._log = log
        self._pause = pause
        self.cut = sys.maxsize
        """A page ends after so many messages whatever its limit, as one does that reaches its bytes."""
        self._lineage: tuple[Fence, ...] = ()
        self._history: tuple[Fence, ...] = ()

    async def tick(self) -> Tick:
        await self._pause("tick")
        tick, lineage = self._log.tick(self._history), self._log.lineage
        await self._pause("ticked")
        if tick.fence != self._log.fence:
            raise GaplessError(Code.UNAVAILABLE, "the connection broke with the server")
        self._lineage = lineage
        return tick

    def follow(self, tick: Tick) -> None:
        self._history = self._lineage

    def doubt(self, fence: Fence) -> None:
        """Nothing to do: every connection breaks with its server."""

    async def disown(self, epoch: str, known: int) -> None:
        await self._log.disown(epoch)

    async def lost(self, selection: Selection, cursor: int) -> Lost | None:
        await self._pause("lost")
        for lost_from, base in sorted((row.lost_from, row.fence.base) for row in self._log.fences):
            if lost_from <= cursor < base:
                row = self._log.rows.get((selection.namespace, selection.single or ""))
                kept = [m.id for m in row.messages if m.id <= cursor] if row is not None else []
                first = max([lost_from] + [id_ + 1 for id_ in kept[-1:]])
                return Lost(first, cursor, cursor) if first <= cursor else None
        return None

    def _check_fence(self) -> None:
        if self._history and self._history[0] != self._log.fence:
            raise GaplessError(Code.UNAVAILABLE, "the log's history may have changed")

    async def heads(self, channels: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Head]:
        await self._pause("heads")
        self._check_fence()
        heads = {}
        for place in channels:
            row = self._log.rows.get(place)
            unborn_at = self._log.deletion_ids.get(place[0], 0)
            if row is not None:
                heads[place] = Head(row.id, row.last_id, row.last_seq, unborn_at)
            elif place[0] in self._log.namespaces:
                heads[place] = Head(0, 0, 0, unborn_at)
        await self._pause("headed")
        return heads

    async def heads_above(self, selection: Selection, after: int) -> dict[str, int]:
        await self._pause("heads_above")
        self._check_fence()
        return {row.name: row.last_id for row in self._followed(selection) if row.last_id > after}

    async def page(
        self, selection: Selection, after: int, upto: int | None, limit: int, max_bytes: int = 0
    ) -> Page:
        await self._pause("page")
        self._check_fence()
        limit = min(limit, self.cut)
        if selection.single is not None:
            page = self._channel_page(selection, after, limit)
        else:
            assert upto is not None, "several channels are read up to the watermark"
            starts = {row.id: 0 for row in self._followed(selection)}
            page = self._page(selection, starts, after, upto, limit)
        await self._pause("paged")
        return page

    def _channel_page(self, selection: Selection, after: int, limit: int) -> Page:
        row = self._log.rows.get((selection.namespace, selection.names[0]))
        if row is None:
            return Page(after, after, 0, ())
        found = tuple(m for m in row.after(after) if _admits(selection, m))[:limit]
        if len(found) == limit:
            end, seq = found[-1].id, found[-1].seq
        else:
            end, seq = max(after, row.last_id), row.last_seq
        return Page(after, end, seq, found, _trims([row], after), row.id)

    def _page(self, selection: Selection, starts: dict[int, int], after: int, upto: int, limit: int) -> Page:
        rows = [row for row in self._followed(selection) if row.id in starts]
        found = sorted(
            (
                m
                for row in rows
                for m in row.after(max(after, starts[row.id]))
                if m.id <= upto and _admits(selection, m)
            ),
            key=lambda m: m.id,
        )[:limit]
        end = found[-1].id if len(found) == limit else upto
        trims = tuple(t for r in rows for t in _trims([r], max(after, starts[r.id])))
        return Page(after, end, 0, tuple(found), trims)

    async def span(self, after: int, upto: int, limit: int) -> Span:
        await self._pause("span")
        self._check_fence()
        limit = min(limit, self.cut)
        ids = [i for i in self._log.ids if after < i <= upto][:limit]
        rows = [self._log.by_id[i] for i in ids]
        end = ids[-1] if len(ids) == limit else upto
        span = Span(
            tuple((row.namespace, message) for row, message in rows), end, self._log.trimmed_id > after
        )
        await self._pause("spanned")
        return span

    async def last(self, selection: Selection, count: int, upto: int) -> dict[int, int]:
        await self._pause("last")
        self._check_fence()
        starts = {}
        for row in self._followed(selection):
            kept = [m for m in row.after(0) if m.id <= upto and _admits(selection, m)]
            starts[row.id] = kept[-count].id - 1 if len(kept) >= count else row.trimmed_id
        await self._pause("lasted")
        return starts

    async def page_from(
        self,
        selection: Selection,
        starts: dict[int, int],
        after: int,
        upto: int,
        limit: int,
        max_bytes: int = 0,
    ) -> Page:
        await self._pause("page_from")
        self._check_fence()
        limit = min(limit, self.cut)
        page = self._page(selection, starts, after, upto, limit)
        await self._pause("paged_from")
        return page

    async def since(self, selection: Selection, time: datetime) -> int | None:
        await self._pause("since")
        wanted = microseconds(time)
        ids = [m.id for r in self._followed(selection) for m in r.after(0) if m.created_at_us >= wanted]
        await self._pause("sinced")
        return min(ids) - 1 if ids else None

    async def seq_at(self, channel_id: int, message_id: int) -> int:
        await self._pause("seq_at")
        seqs = [row.seq_at(message_id) for row in self._log.rows.values() if row.id == channel_id]
        await self._pause("seq_was")
        return max(seqs, default=0)

    async def place_at(self, namespace: str, channel: str, seq: int) -> Place:
        await self._pause("place_at")
        self._check_fence()
        row = self._log.rows.get((namespace, channel))
        unborn_at = self._log.deletion_ids.get(namespace, 0)
        if row is None:
            deletion_id = self._log.last_deletion((namespace, channel))
            place = replace(NO_PLACE, unborn_at=unborn_at, deletion_id=deletion_id)
        else:
            ids = [m.id for m in row.after(0) if m.seq <= seq]
            place = Place(
                row.id,
                row.last_id,
                row.last_seq,
                row.first_seq,
                row.trimmed_id,
                unborn_at,
                row.deletion_id,
                max(ids, default=row.trimmed_id),
            )
        await self._pause("placed")
        return place

    def _followed(self, selection: Selection) -> list[Row]:
        patterns = [compile_pattern(p) for p in selection.patterns]
        return [
            row
            for (namespace, name), row in self._log.rows.items()
            if namespace == selection.namespace
            and (name in selection.names or any(p.matches(name) for p in patterns))
        ]


class MemoryHistory:
    """Implements `HistoryPort`."""

    def __init__(self, log: MemoryLog, pause: Pause = at_once) -> None:
        self._log = log
        self._pause = pause

    async def history(self, query: HistoryQuery) -> HistoryPage:
        await self._pause("history")
        row = _row(self._log, query.namespace, query.channel)
        if query.ascending and query.after is not None and query.after < row.trimmed_id:
            raise GaplessError(Code.CURSOR_EXPIRED, "retention removed what was asked for")
        found = [m for m in row.after(query.after or 0) if _wanted(query, m)]
        if not query.ascending:
            found.reverse()
        return HistoryPage(found[: query.limit], len(found) > query.limit, row.last_id)

    async def export(self, query: HistoryQuery) -> AsyncIterator[list[Message]]:
        found = (await self.history(query)).messages
        for at in range(0, len(found), EXPORT_BATCH):
            yield found[at : at + EXPORT_BATCH]

    async def message(self, namespace: str, channel: str, message_id: int) -> Message:
        row = _row(self._log, namespace, channel)
        for message in row.after(message_id - 1)[:1]:
            if message.id == message_id:
                return message
        raise GaplessError(Code.MESSAGE_NOT_FOUND, f"channel {channel} has no message {message_id}")


class MemoryChannels:
    """Implements `ChannelPort`."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    async def get(self, namespace: str, name: str) -> Channel:
        return _row(self._log, namespace, name).value()

    async def page(self, namespace: str, pattern_regex: str | None, after: str, limit: int) -> list[Channel]:
        names = sorted(name for ns, name in self._log.rows if ns == namespace and name > after)
        if pattern_regex is not None:
            names = [name for name in names if re.search(pattern_regex, name)]
        return [_row(self._log, namespace, name).value() for name in names[:limit]]

    async def put(
        self,
        namespace: str,
        name: str,
        retention: Retention,
        message_ttl: float | None,
        *,
        if_match: Tags | None = None,
        if_absent: bool = False,
    ) -> tuple[Channel, bool]:
        made = (namespace, name) not in self._log.rows
        if (if_absent and not made) or (if_match is not None and made):
            raise GaplessError(Code.PRECONDITION_FAILED, f"channel {name} is or is not there")
        if if_match is not None:
            _expect(_row(self._log, namespace, name), if_match)
        row = self._log.row((namespace, name), create=True)
        assert row is not None
        return self._set(row, {**asdict(retention), "message_ttl": message_ttl}), made

    async def patch(
        self, namespace: str, name: str, settings: dict[str, float | None], *, if_match: Tags | None = None
    ) -> Channel:
        row = _row(self._log, namespace, name)
        _expect(row, if_match)
        return self._set(row, settings)

    def _set(self, row: Row, settings: Mapping[str, float | None]) -> Channel:
        row.own = changed(row.own, settings)
        self._log.refresh(row)
        return row.value()

    async def delete(self, namespace: str, name: str, *, if_match: Tags | None = None) -> None:
        _expect(_row(self._log, namespace, name), if_match)
        self._log.delete((namespace, name))


def _row(log: MemoryLog, namespace: str, name: str) -> Row:
    row = log.rows.get((namespace, name))
    if row is None:
        raise GaplessError(Code.CHANNEL_NOT_FOUND, f"channel {name} does not exist")
    return row


def _expect(row: Row, if_match: Tags | None) -> None:
    if if_match is not None and if_match != ("*",) and row.tag not in if_match:
        raise GaplessError(Code.PRECONDITION_FAILED, f"channel {row.name} is not what If-Match names")


def _trims(rows: list[Row], after: int) -> tuple[Trim, ...]:
    return tuple(Trim(r.name, r.id, r.first_seq, r.trimmed_id) for r in rows if r.trimmed_id > after)


def _wanted(query: HistoryQuery, message: Message) -> bool:
    if query.before is not None and message.id >= query.before:
        return False
    if query.since is not None and message.created_at_us < microseconds(query.since):
        return False
    if query.types and message.type not in query.types:
        return False
    if query.keys and message.key not in query.keys:
        return False
    return query.changes == "all" or message.is_original == (query.changes == "none")


def _admits(selection: Selection, message: Message) -> bool:
    return selection.admits(message.type, message.key, is_change=not message.is_original)
