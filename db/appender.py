"""One connection that appends batches to the log: one statement, one transaction, one round trip."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from itertools import count
from typing import Any, TypeVar

import asyncpg
import msgspec

from db.connect import FAILURES, PUBLISH_TIMEOUT_S, QUERIES, DatabaseConfig, connect, translate
from db.namespaces import unknown_namespace
from db.queries import load
from subscriptions.domain.errors import Code, GaplessError, UnreachableError, unavailable
from subscriptions.domain.model import Append, Appended, Change, NewMessage, Position, microseconds
from subscriptions.domain.watermark import Fence

T = TypeVar("T")
log = logging.getLogger(__name__)

ATTEMPTS = 4

_RETRY_WHOLE = (asyncpg.SerializationError, asyncpg.DeadlockDetectedError)
_LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
_UNFIT = (asyncpg.DataError, asyncpg.ProgramLimitExceededError)
"""Errors that the content of one message causes."""
_STORED, _REPLAYED, _MISMATCH, _HEAD_MISMATCH, _NO_CHANNEL = range(5)
_OF_CHANGES = {
    5: (Code.MESSAGE_NOT_FOUND, "a target is no message that is kept in this channel"),
    6: (Code.CONFLICT, "a target changes another message itself"),
    7: (Code.VERSION_MISMATCH, "the target has another version"),
    8: (Code.FORBIDDEN, "only who sent a message may change it, or who may moderate its channel"),
    9: (Code.RATE_LIMITED, "the target has a thousand annotations of different names and keys"),
}
"""What statuses of `gapless_internal.judge_changes` mean."""


class Appender:
    """Implements `AppendPort` over one connection. Not for concurrent use: a batch goes to one appender."""

    def __init__(
        self,
        config: DatabaseConfig,
        *,
        create_channels: bool = True,
    ) -> None:
        self._config = config
        self._create = create_channels
        self._connection: asyncpg.Connection | None = None
        self._namespaces: dict[str, int] = {}
        self._sql = load()["append"]

    def __repr__(self) -> str:
        return f"Appender({'connected' if self._connection else 'not connected'})"

    async def append(self, batch: Sequence[Append]) -> list[Appended | GaplessError]:
        """Append the batch in one transaction; see `AppendPort`.

        If the connection is lost before the answer, the outcome is unknown. Requests with an idempotency key
        can be sent again without doubling them, so the batch is repeated if all its requests have a key.
        """
        for attempt in count(1):
            try:
                # The timeout includes connecting: a server may accept the connection and not answer.
                async with asyncio.timeout(PUBLISH_TIMEOUT_S + 1):
                    connection = await self._connected()
                    await self._know(connection, batch)
                    if any(append.namespace not in self._namespaces for append in batch):
                        return await self._without_strangers(batch)
                    places, arguments = arguments_of(batch, self._namespaces, self._create)
                    QUERIES.labels("append").inc()
                    row = await connection.fetchrow(self._sql, *arguments)
                return answers_of(batch, places, row)
            except _RETRY_WHOLE:
                if attempt >= ATTEMPTS:
                    raise unavailable("too many concurrent writers; nothing was stored") from None
            except asyncpg.ForeignKeyViolationError:
                # A namespace was removed after its id was read.
                self._namespaces = {}
                if attempt >= ATTEMPTS:
                    raise unavailable("a namespace is removed and made again; nothing was stored") from None
            except _LOST as error:
                self.terminate()
                if attempt >= ATTEMPTS or not all(a.idempotency_key for a in batch):
                    raise UnreachableError(
                        "the connection was lost while committing: the message is stored once or not at all;"
                        " to be sure, repeat the request with an Idempotency-Key"
                    ) from error
            except _UNFIT as error:
                log.warning("the database refuses a message: %s", error)
                return await self._one_by_one(batch)
            except asyncpg.PostgresError as error:
                log.warning("append failed: %s", error)
                raise translate(error) from error
            except BaseException:
                # Cancelled half way: an answer that still arrives on this connection must not be read.
                self.terminate()
                raise
        raise AssertionError("unreachable")

    async def _without_strangers(self, batch: Sequence[Append]) -> list[Appended | GaplessError]:
        """A request for a namespace that does not exist is refused; the others are appended."""
        known = [append for append in batch if append.namespace in self._namespaces]
        answers = iter(await self.append(known) if known else [])
        return [
            next(answers) if append.namespace in self._namespaces else unknown_namespace(append.namespace)
            for append in batch
        ]

    async def _one_by_one(self, batch: Sequence[Append]) -> list[Appended | GaplessError]:
        """Append each request alone after the batch was rolled back, so that a bad one fails no others."""
        if len(batch) == 1:
            return [GaplessError(Code.INVALID_REQUEST, "the database cannot hold this; nothing was stored")]
        answers: list[Appended | GaplessError] = []
        for append in batch:
            try:
                answers += await self.append([append])
            except GaplessError as error:
                answers.append(error)
        return answers

    def terminate(self) -> None:
        """Close the socket without waiting for the server."""
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None

    async def _connected(self) -> asyncpg.Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(
                self._config, application="publisher", timeout_s=PUBLISH_TIMEOUT_S
            )
            # It may lead to another database, which has ids of its own.
            self._namespaces = {}
        return self._connection

    async def _know(self, connection: asyncpg.Connection, batch: Sequence[Append]) -> None:
        """Load the ids of the batch's namespaces. They are read again only if a namespace is not known."""
        if all(append.namespace in self._namespaces for append in batch):
            return
        try:
            rows = await connection.fetch(load()["namespaces"])
        except FAILURES as error:
            self.terminate()
            raise translate(error) from error
        self._namespaces = {row["name"]: row["id"] for row in rows}


_NO_CHANGES = (None, None, None)
Place = tuple[str, str]
"""A namespace and the name of a channel in it."""


def arguments_of(
    batch: Sequence[Append], namespaces: dict[str, int], create: bool
) -> tuple[list[Place], tuple[Any, ...]]:
    """The distinct channels of a batch, and the arrays of `gapless.append`; see there."""
    numbers: dict[Place, int] = {}
    requests: list[int] = []
    channels: list[int] = []
    messages: list[NewMessage] = []
    for number, append in enumerate(batch, start=1):
        namespace = append.namespace
        for m in append.messages:
            place = (namespace, m.channel)
            channels.append(numbers.get(place) or numbers.setdefault(place, len(numbers) + 1))
        requests += [number] * len(append.messages)
        messages += append.messages
    judged = any(a.idempotency_key is not None or a.expected_last_seq is not None for a in batch)
    firsts = [numbers[a.namespace, a.messages[0].channel] for a in batch]
    # Turns rows into columns in one step; the order is that of `NewMessage`.
    _, data, binary, types, keys, headers, ttls, _, senders, changes = zip(*messages, strict=True)
    return list(numbers), (
        [namespaces[namespace] for namespace, _ in numbers],
        [name for _, name in numbers],
        create,
        [namespaces[a.namespace] for a in batch] if judged else None,
        [a.idempotency_key for a in batch] if judged else None,
        [a.fingerprint for a in batch] if judged else None,
        [a.expected_last_seq for a in batch] if judged else None,
        firsts if judged else None,
        _numbers(requests),
        _numbers(channels),
        types,
        _column(keys),
        _column([None if text is None else text.decode() for text in data]),
        _column(binary),
        _column([text.decode() or None for text in headers]),
        _column(senders),
        _column(ttls),
        *(_NO_CHANGES if changes.count(None) == len(changes) else _of_changes(changes)),
    )


def _of_changes(changes: Sequence[Change | None]) -> tuple[Any, ...]:
    """What messages change, in which version, and whether their senders may change anybody's."""
    return (
        [None if change is None else change.text.decode() for change in changes],
        _column([None if change is None else change.version for change in changes]),
        _numbers([change is not None and change.moderates for change in changes]),
    )


def _numbers(values: Sequence[int]) -> str:
    """An array of numbers or booleans as Postgres writes it. asyncpg asks of each item of a list whether it
    is a list itself; for a number that takes longer than all the rest."""
    return f"{{{','.join(map(str, values))}}}"


def _column(values: Sequence[T | None]) -> Sequence[T | None] | None:
    """None stands for a column of nulls: `unnest` fills missing arrays with nulls."""
    return None if values.count(None) == len(values) else values


def answers_of(batch: Sequence[Append], places: list[Place], row: Any) -> list[Appended | GaplessError]:
    ids, seqs, created_at_us = row["ids"], row["seqs"], microseconds(row["appended_at"])
    statuses = row["statuses"]
    expires: list[int | None] = [None] * len(ids)
    if row["expires_at"] is not None:
        expires = [None if time is None else microseconds(time) for time in row["expires_at"]]
    replays = msgspec.json.decode(row["answers"]) if row["answers"] else None
    # Heads move with each request, so that every hint says what came right before its messages.
    before = zip(row["channel_ids"], row["last_ids"], row["last_seqs"], strict=True)
    heads: dict[Place, tuple[int, int, int]] = dict(zip(places, before, strict=True))
    fence = None if row["epoch"] is None else Fence(row["fences"], row["epoch"], row["base"])
    answers: list[Appended | GaplessError] = []
    at = 0
    for number, append in enumerate(batch):
        end = at + len(append.messages)
        status = statuses[number] if statuses else _STORED
        if status == _STORED:
            rows = zip(append.messages, ids[at:end], seqs[at:end], expires[at:end], strict=True)
            positions = tuple([Position(i, m.channel, s, created_at_us, e) for m, i, s, e in rows])
            answers.append(_stored(append.namespace, positions, heads, fence))
        elif status == _REPLAYED:
            assert replays is not None
            answers.append(_replayed(replays[number]))
        else:
            answers.append(_refused(status, append))
        at = end
    return answers


def _stored(
    namespace: str,
    positions: tuple[Position, ...],
    heads: dict[Place, tuple[int, int, int]],
    fence: Fence | None,
) -> Appended:
    if len(positions) == 1:  # As below, for the most common request.
        (only,) = positions
        place = (namespace, only.channel)
        head = heads[place]
        assert only.seq == head[2] + 1, "seq is dense under the channel's lock"
        heads[place] = (head[0], only.id, only.seq)
        return Appended(positions, before={only.channel: head}, fence=fence)
    newest = {position.channel: position for position in positions}
    before = {channel: heads[namespace, channel] for channel in newest}
    added = sum(position.seq - before[channel][2] for channel, position in newest.items())
    assert added == len(positions), "seq is dense under the channel's lock"
    for channel, position in newest.items():
        heads[namespace, channel] = (before[channel][0], position.id, position.seq)
    return Appended(positions, before=before, fence=fence)


def _replayed(first: dict[str, Any]) -> Appended:
    if not first["seqs"]:
        # This key's message was scheduled: it has no place in the log, or had none then.
        return Appended((), replayed=True)
    created_at_us = first["created_at_us"]
    rows = zip(first["ids"], first["channels"], first["seqs"], strict=True)
    return Appended(tuple(Position(i, c, s, created_at_us) for i, c, s in rows), replayed=True)


def _refused(status: int, append: Append) -> GaplessError:
    if status == _MISMATCH:
        return GaplessError(
            Code.IDEMPOTENCY_MISMATCH, "this Idempotency-Key was used for another request within 24 hours"
        )
    if status == _HEAD_MISMATCH:
        return GaplessError(
            Code.HEAD_MISMATCH,
            f"the channel's last seq is not {append.expected_last_seq}; nothing was stored",
        )
    if status in _OF_CHANGES:
        return refused_change(status)
    assert status == _NO_CHANNEL
    return GaplessError(Code.CHANNEL_NOT_FOUND, "a channel does not exist and is not made by publishing here")


def refused_change(status: int) -> GaplessError:
    """Why `gapless_internal.judge_changes` refused a message."""
    code, why = _OF_CHANGES[status]
    return GaplessError(code, f"{why}; nothing was stored")
