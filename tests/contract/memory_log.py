"""The log in memory, with the semantics of the real one: transactions that hold the publishing lock and
their channels, void ids, retention, a journal that is flushed late, crashes.

Tests drive it step by step (`Transaction`), or through the ports (`MemoryAppender`, `MemoryReader`,
`MemoryHistory`).
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from subscriptions.domain.delivery import AppliesTo, Policy
from subscriptions.domain.errors import Code, GaplessError
from subscriptions.domain.model import Append, Appended, Channel, Message, NewMessage, Position, Retention
from subscriptions.domain.watermark import Fence, Tick
from tests.contract.memory_settings import in_force

JOURNAL_S = 0.2
JUMP = 1000
DAY_US = 24 * 3600 * 1_000_000
Place = tuple[str, str]


class ConflictError(Exception):
    """Another transaction stored a key meanwhile, or crashed this one: begin again."""


class CrashedError(Exception):
    """The database went down under this transaction."""


@dataclass(slots=True)
class Row:
    """A channel's row, and its messages in id order."""

    id: int
    namespace: str
    name: str
    created_at_us: int
    deletion_id: int = 0
    """The last id that was taken when the channel of this name before it was deleted."""
    last_id: int = 0
    last_seq: int = 0
    first_seq: int = 1
    trimmed_id: int = 0
    own: dict[str, Any] = field(default_factory=dict)
    """Its own settings; those in force follow."""
    retention: Retention = field(default_factory=Retention)
    message_ttl: float | None = None
    origins: dict[str, str] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    deleted: bool = False

    def after(self, cursor: int) -> list[Message]:
        """Kept messages above `cursor`."""
        floor = max(cursor, self.trimmed_id)
        return self.messages[bisect_right(self.messages, floor, key=lambda m: m.id) :]

    def seq_at(self, message_id: int) -> int:
        """The seq of its newest message at or below this id, removed ones included."""
        seqs = [m.seq for m in self.messages if m.id <= message_id]
        return max([0, *seqs, *[seq for id_, seq in self.marks if id_ <= message_id]])

    def value(self) -> Channel:
        """The row as the ports show it."""
        return Channel(
            namespace=self.namespace,
            name=self.name,
            last_id=self.last_id,
            last_seq=self.last_seq,
            first_seq=self.first_seq,
            trimmed_id=self.trimmed_id,
            created_at_us=self.created_at_us,
            retention=self.retention,
            message_ttl=self.message_ttl,
            origins=self.origins,
            tag=self.tag,
        )

    @property
    def is_untouched(self) -> bool:
        """Whether nobody has published to it or said how it is to be."""
        return self.last_seq == 0 and not self.own

    @property
    def tag(self) -> str:
        """What its settings are, in short."""
        return f"{self.id} {sorted(self.own.items())}"


@dataclass(frozen=True, slots=True)
class Key:
    """A remembered idempotency key."""

    fingerprint: bytes
    stored_at_us: int
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class FenceRow:
    """A fence: ids from `lost_from` to below its base were given to messages that are not here, or to none.
    `newest`: the newest id that a message had then; `commits`: how many there had been; `recovered`: how far
    the journal went that a crash left."""

    fence: Fence
    lost_from: int = 0
    newest: int = 0
    commits: int = 0
    recovered: int | None = None


class MemoryLog:
    """What the database holds. `now_us` is its clock."""

    fenced: ClassVar[bool] = True
    """Whether a break in the history is noticed; without it ids and seqs are given again."""

    def __init__(self, now_us: Callable[[], int] | None = None) -> None:
        self._ticking = itertools.count(1_700_000_000_000_000)
        self.now_us: Callable[[], int] = now_us or (lambda: next(self._ticking))
        self.namespaces = {"default"}
        self.sequence = 0
        self.rows: dict[Place, Row] = {}
        self.by_id: dict[int, tuple[Row, Message]] = {}
        self.deletion_ids: dict[str, int] = {}
        self.deleted_names: dict[Place, int] = {}
        """The newest deletions, in their order: at which id each name was deleted."""
        self.forgotten_ids: dict[str, int] = {}
        self.names_kept = 100_000
        """Names of deleted channels that a namespace remembers."""
        self.ids: list[int] = []
        self.policies: dict[Place, Policy] = {}
        self.keys: dict[Place, Key] = {}
        self.key_writers: dict[Place, Transaction] = {}
        self.running: dict[str, Transaction] = {}
        self.trimmed_id = 0
        self.lsn = 0
        self.flushed = 0
        self.life = 1
        self._epochs = itertools.count(1)
        self.fences = [FenceRow(Fence(0, str(next(self._epochs)), 0))]
        self.commits: list[tuple[int, list[tuple[Row, Message]]]] = []
        """Where in the journal each begins, and what it stored."""
        self.lost: set[int] = set()
        """Ids of messages that a failover took."""
        self._durable_sequence = 0
        self._highest = 0
        """The highest base ever: it stands for time, which goes on whatever is restored."""
        self._numbers = itertools.count(1)
        self._channel_ids = itertools.count(1)

    # --- writing

    def begin(self, batch: Sequence[Append], *, create: bool = True) -> Transaction:
        """A transaction that publishes; it holds the publishing lock from here on."""
        transaction = Transaction(self, f"{self.life}/{next(self._numbers)}", batch, create)
        self.running[transaction.name] = transaction
        return transaction

    def row(self, place: Place, *, create: bool) -> Row | None:
        """The channel's row, made when asked to."""
        row = self.rows.get(place)
        if row is None and create:
            deletion_id = self.last_deletion(place)
            row = Row(next(self._channel_ids), *place, self.now_us(), deletion_id)
            self.rows[place] = row
            self.refresh(row)
        return row

    def refresh(self, row: Row) -> None:
        """The settings in force are those of now."""
        policies = [policy for (namespace, _), policy in self.policies.items() if namespace == row.namespace]
        settings, row.origins = in_force(policies, AppliesTo.CHANNELS, row.name, row.own, {})
        row.retention = Retention(settings.get("max_age"), settings.get("max_messages"))
        row.message_ttl = settings.get("message_ttl")

    def take_id(self) -> int:
        """The next id: it stays taken whatever becomes of the transaction."""
        self.sequence += 1
        self.lsn += 1
        return self.sequence

    def store(self, row: Row, message: Message) -> None:
        """A message becomes visible."""
        row.messages.append(message)
        self.by_id[message.id] = (row, message)
        insort(self.ids, message.id)

    def flush(self) -> None:
        """The journal is on disk as far as it goes."""
        self.flushed = self.lsn
        self._durable_sequence = self.sequence

    def flush_soon(self) -> None:
        """As the writer of the journal does it of its own accord."""
        asyncio.get_running_loop().call_later(JOURNAL_S, self.flush)

    @property
    def fence(self) -> Fence:
        return self.fences[-1].fence

    @property
    def lineage(self) -> tuple[Fence, ...]:
        """The fences that led here, newest first."""
        return tuple(row.fence for row in reversed(self.fences))

    def tick(self, followed: Sequence[Fence] = ()) -> Tick:
        """As the database reads it, for one who followed the history of these fences, newest first."""
        known = followed[0].number if followed else sys.maxsize
        since = [row for row in self.fences if row.fence.number > known]
        shared = max((fence.number for fence in self.lineage if fence in followed), default=-1)
        return Tick(
            self.sequence,
            self.lsn,
            min([self.flushed, *(row.recovered for row in since if row.recovered is not None)]),
            frozenset(self.running),
            str(self.life),
            self.fence,
            min((row.newest for row in since), default=self.fences[-1].newest),
            shared if followed else None,
        )

    def crash(self) -> None:
        """Everything unflushed is gone: running transactions, and ids that only they had taken."""
        self._end_all()
        self.sequence = self._durable_sequence
        self.life += 1
        recovered = self.flushed
        self.lsn = self.flushed = recovered + 10  # Recovery writes a journal of its own.
        self._fence(self.sequence + 1, recovered=recovered)

    def fail_over(self, behind: int, *, noticed: bool = True, lacks_fence: bool = False) -> None:
        """A standby is promoted that lacks the newest `behind` commits, and the fences that were put up
        since; with `lacks_fence`, those right before the first of these too. Not `noticed`: a copy of the
        server's files was put in its place, which looks as if it had crashed."""
        self._end_all()
        kept = len(self.commits) - behind - lacks_fence
        self.fences = self.fences[:1] + [row for row in self.fences[1:] if row.commits <= kept]
        lost = self.commits[len(self.commits) - behind :]
        del self.commits[len(self.commits) - behind :]
        gone = [item for _, commit in lost for item in commit]
        for row, message in reversed(gone):
            assert row.messages.pop() is message, "commits of a channel come in its order"
            row.last_seq = message.seq - 1
            row.last_id = row.messages[-1].id if row.messages else 0
            self.ids.remove(message.id)
            del self.by_id[message.id]
            self.lost.add(message.id)
        self.keys = {k: v for k, v in self.keys.items() if not self.lost & {p.id for p in v.positions}}
        self.sequence = self._durable_sequence = self.ids[-1] if self.ids else 0
        self.life += 1
        recovered = lost[0][0] if lost else self.flushed
        self.lsn = self.flushed = recovered + 10  # Recovery writes a journal of its own.
        if noticed:
            self._move()
        else:
            self._fence(self.sequence + 1, recovered=recovered)

    async def disown(self, epoch: str) -> None:
        """Somebody has seen more of this history than is here. A fence waits for all who publish."""
        while self.running:
            await next(iter(self.running.values())).ended()
        if epoch == self.fence.epoch:
            self._move()

    def _move(self) -> None:
        self._fence(min(self.lost, default=self.sequence + 1), str(next(self._epochs)))

    def _fence(self, lost_from: int, epoch: str | None = None, recovered: int | None = None) -> None:
        """Without an epoch, the log goes on in that of the last fence."""
        if self.fenced:
            base = self._highest = (max(self.sequence, self._highest) // JUMP + 1) * JUMP
            fence = Fence(len(self.fences), epoch or self.fence.epoch, base)
            row = FenceRow(fence, lost_from, max(self.ids, default=0), len(self.commits), recovered)
            self.fences.append(row)
            self.sequence = self._durable_sequence = base - 1

    def _end_all(self) -> None:
        for transaction in list(self.running.values()):
            transaction.crashed = True
            transaction.rollback()

    # --- channels and retention

    def delete(self, place: Place) -> bool:
        """Delete a channel whose lock is free."""
        row = self.rows.get(place)
        if row is None:
            return False
        assert not row.lock.locked(), "a channel is deleted under its lock"
        row.deleted = True
        if row.last_seq > 0:
            self._note_deletion(place)
        del self.rows[place]
        for message in row.messages:
            self.ids.remove(message.id)
            del self.by_id[message.id]
        return True

    def _note_deletion(self, place: Place) -> None:
        self.deletion_ids[place[0]] = self.sequence
        self.deleted_names.pop(place, None)
        self.deleted_names[place] = self.sequence
        of_namespace = [known for known in self.deleted_names if known[0] == place[0]]
        for known in of_namespace[: max(0, len(of_namespace) - self.names_kept)]:
            self.forgotten_ids[place[0]] = self.deleted_names.pop(known)

    def last_deletion(self, place: Place) -> int:
        """The last id that was taken when a channel of this name was last deleted, or a larger one if it was
        forgotten."""
        return self.deleted_names.get(place, self.forgotten_ids.get(place[0], 0))

    def trim(self, place: Place, keep: int) -> None:
        """Retention: keep the newest `keep` messages."""
        row = self.rows[place]
        if row.last_seq - row.first_seq + 1 <= keep:
            return
        first_seq = row.last_seq - keep + 1
        row.trimmed_id = max(m.id for m in row.messages if m.seq < first_seq)
        row.first_seq = first_seq
        self.trimmed_id = max(self.trimmed_id, row.trimmed_id)

    def purge(self) -> None:
        """Remove what retention let go, as dropping its segment does."""
        for row in self.rows.values():
            gone = [m for m in row.messages if m.id <= row.trimmed_id]
            if not gone:
                continue
            row.marks.append((gone[-1].id, gone[-1].seq))
            del row.messages[: len(gone)]
            for message in gone:
                self.ids.remove(message.id)
                del self.by_id[message.id]

    def age_keys(self, hours: float) -> None:
        """As if that much time had passed for every idempotency key."""
        older = int(hours * 3600 * 1_000_000)
        self.keys = {k: replace(v, stored_at_us=v.stored_at_us - older) for k, v in self.keys.items()}


class Transaction:
    """One publishing transaction: `lock`, `take`, then `commit` or `rollback`."""

    def __init__(self, log: MemoryLog, name: str, batch: Sequence[Append], create: bool) -> None:
        self.name = name
        self.crashed = False
        self._log = log
        self._batch = batch
        self._create = create
        self._rows: dict[Place, Row] = {}
        self._made: list[Row] = []
        self._stored: list[tuple[Row, Message]] = []
        self._keys: dict[Place, Key] = {}
        self._heads: dict[Place, tuple[int, int, int]] = {}
        self._over = asyncio.Event()

    async def ended(self) -> None:
        """Wait for its end."""
        await self._over.wait()

    async def lock(self) -> None:
        """Wait for every channel, in one order."""
        known = [append for append in self._batch if append.namespace in self._log.namespaces]
        places = sorted({(a.namespace, m.channel) for a in known for m in a.messages})
        there = set(self._log.rows)
        found = {p: row for p in places if (row := self._log.row(p, create=self._create)) is not None}
        self._made += [row for place, row in found.items() if place not in there]
        for place, row in sorted(found.items(), key=lambda item: item[1].id):
            await row.lock.acquire()
            if self.crashed or row.deleted:
                row.lock.release()
                raise ConflictError
            self._rows[place] = row
            self._heads[place] = (row.id, row.last_id, row.last_seq)

    async def take(self) -> list[Appended | GaplessError]:
        """Judge every request, take ids, and write: the answers to give after the commit."""
        answers = [self._refusal(a) for a in self._batch]
        done = [
            self._write(append) if answer is None else answer
            for append, answer in zip(self._batch, answers, strict=True)
        ]
        for key in self._keys:
            writer = self._log.key_writers.get(key)
            if writer is not None:
                await writer.ended()
            if self.crashed or (key in self._log.keys and not self._stale(self._log.keys[key])):
                raise ConflictError
            self._log.key_writers[key] = self
        return done

    def commit(self) -> None:
        """Everything becomes visible at once, on disk; then the locks go."""
        if self.crashed:
            raise CrashedError
        for row, message in self._stored:
            row.last_id, row.last_seq = message.id, message.seq
            self._log.store(row, message)
        self._log.commits.append((self._log.lsn, self._stored))
        self._log.keys |= self._keys
        self._log.lsn += 1
        self._log.flush()
        self._end()

    def rollback(self) -> None:
        """Nothing happened, except that ids were taken; the journal says so a moment later."""
        self._end()
        self._log.flush_soon()

    def _end(self) -> None:
        self._over.set()
        for key in [k for k, writer in self._log.key_writers.items() if writer is self]:
            del self._log.key_writers[key]
        self._log.running.pop(self.name, None)
        for row in self._made:
            # What was refused leaves nothing behind. Whoever waits for the row begins again.
            is_mine = self._rows.get((row.namespace, row.name)) is row or not row.lock.locked()
            if is_mine and row.is_untouched and not row.deleted:
                row.deleted = True
                del self._log.rows[row.namespace, row.name]
        self._made = []
        for row in self._rows.values():
            row.lock.release()
        self._rows = {}

    def _stale(self, key: Key) -> bool:
        return key.stored_at_us <= self._log.now_us() - DAY_US

    def _refusal(self, append: Append) -> Appended | GaplessError | None:
        if append.namespace not in self._log.namespaces:
            return GaplessError(Code.NOT_FOUND, f"namespace {append.namespace} does not exist")
        key = self._log.keys.get((append.namespace, append.idempotency_key or ""))
        if append.idempotency_key is not None and key is not None and not self._stale(key):
            if key.fingerprint == append.fingerprint:
                return Appended(key.positions, replayed=True)
            return GaplessError(Code.IDEMPOTENCY_MISMATCH, "this key was used for another request")
        first = self._rows.get((append.namespace, append.messages[0].channel))
        seq = first.last_seq if first is not None else 0
        if append.expected_last_seq is not None and append.expected_last_seq != seq:
            return GaplessError(Code.HEAD_MISMATCH, "the channel's last seq is another")
        if any((append.namespace, m.channel) not in self._rows for m in append.messages):
            return GaplessError(Code.CHANNEL_NOT_FOUND, "a channel does not exist")
        return None

    def _write(self, append: Append) -> Appended:
        now_us = self._log.now_us()
        before: dict[str, tuple[int, int, int]] = {}
        positions = []
        for new in append.messages:
            place = (append.namespace, new.channel)
            head = self._heads[place]
            before.setdefault(new.channel, head)
            row = self._rows[place]
            message = _message(new, self._log.take_id(), head[2] + 1, now_us, row.message_ttl)
            self._heads[place] = (row.id, message.id, message.seq)
            self._stored.append((row, message))
            positions.append(_position(message))
        if append.idempotency_key is not None:
            self._keys[append.namespace, append.idempotency_key] = Key(
                append.fingerprint, now_us, tuple(p._replace(expires_at_us=None) for p in positions)
            )
        return Appended(tuple(positions), before=before, fence=self._log.fence)


def _message(new: NewMessage, id_: int, seq: int, now_us: int, channel_ttl: float | None) -> Message:
    lives = [ttl for ttl in (new.ttl, channel_ttl) if ttl is not None]
    return Message(
        id=id_,
        channel=new.channel,
        seq=seq,
        type=new.type,
        key=new.key,
        data=new.data,
        binary=new.binary,
        headers=new.headers,
        sender=new.sender,
        created_at_us=now_us,
        expires_at_us=now_us + round(min(lives) * 1_000_000) if lives else None,
        change=None if new.change is None else new.change.text,
    )


def _position(message: Message) -> Position:
    return Position(message.id, message.channel, message.seq, message.created_at_us, message.expires_at_us)
