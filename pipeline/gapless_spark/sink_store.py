"""The sink's calls to Postgres. Each is one statement and one transaction, and may be repeated."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from gapless_spark.database import FIRST_PAUSE_S, LONGEST_PAUSE_S, PATIENCE_S
from gapless_spark.errors import AccessDenied, DatabaseUnreachable, GaplessSparkError, QueryFailed
from gapless_spark.sink_errors import BatchChanged, BatchIncomplete, ChangeRefused
from gapless_spark.sink_rows import Chunk

if TYPE_CHECKING:
    import pyarrow as pa
    from adbc_driver_manager.dbapi import Connection

SCHEMA: Final = 5
CHANGES_SCHEMA: Final = 25
"""The oldest migrations that the sink can use, and with which it can publish changes."""

TRANSACTION_ROWS: Final = 50_000
CHANGE_ROWS: Final = 25
TRANSACTION_BYTES: Final = 32 * 1024 * 1024
TRANSACTION_CHANNELS: Final = 10_000
"""The limits of one publishing transaction: at most a fifth of what the database can do in its 5 s. A
partition must stay below them; small partitions are published together up to them. A change counts as so
many rows, because it takes as long."""

_AGAIN: Final = re.compile(r"40001|40P01|55P03|25P04|57P0[1-5]|08...|53...")
"""Conflicts, deadlocks, lock timeouts, ended transactions, shutdowns, lost connections, lack of resources."""
_UNFIT: Final = re.compile(r"row ([0-9]+) does not fit: (.*)")
_CROWDED: Final = re.compile(r"too many clients|too many connections|remaining connection slots")
_ROOM: Final = (TRANSACTION_BYTES, TRANSACTION_CHANNELS)
_PUBLISHING_S: Final = 5.0
"""The database ends a publishing transaction and its connection after this, often without a SQLSTATE."""

_STAGE: Final = (
    "select gapless.spark_stage($1::text, $2::text, $3::bigint, $4::text, $5::text::uuid, $6::integer,"
    " $7::text[], $8::integer[], $9::text[], $10::text[], $11::text[], $12::bytea[], $13::text[],"
    " $14::double precision[])"
)
_STAGE_CHANGES: Final = (
    _STAGE.replace("spark_stage", "spark_stage_changes")[:-1]
    + ", $15::bigint[], $16::text[], $17::bigint[], $18::text[], $19::text[], $20::boolean[])"
)
_BIND: Final = (
    "select gapless.spark_bind($1::text, $2::text, $3::bigint, $4::text[]::uuid[], $5::bigint[], $6::bigint,"
    " $7::boolean)::text"
)
_PUBLISH: Final = (
    "select p.published::bigint, p.partitions::bigint"
    " from gapless.spark_publish($1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint) p"
)
_PUBLISH_REST: Final = (
    "select p.published::bigint, p.partitions::bigint, p.refused, array_to_json(p.said)::text"
    " from gapless.spark_publish_batch($1::text, $2::text, $3::bigint, $4::bigint, $5::bigint, $6::bigint,"
    " true) p"
)
_DISCARD: Final = "select gapless.spark_discard($1::text[]::uuid[])::text"
_TIDY: Final = "select gapless.spark_tidy($1::text, $2::text, $3::bigint, 1000)::text"


@dataclass(frozen=True, slots=True)
class BatchKey:
    """The identity of a write: a query and its batch, or a write id and -1. Namespace None: the one that the
    login was granted."""

    namespace: str | None
    query: str
    batch: int

    @property
    def title(self) -> str:
        """The write in words, for error texts."""
        return f"batch {self.batch} of query {self.query}" if self.batch >= 0 else f"write {self.query!r}"


class Store:
    """One connection, opened when needed and opened again when lost. Not for concurrent use.

    Every call raises `DatabaseUnreachable` or `BatchIncomplete` after `patience_s`, the errors of
    `database.connect`, and those that its own text names.
    """

    def __init__(self, url: str, patience_s: float = PATIENCE_S, schema: int = SCHEMA) -> None:
        self._url = url
        self._patience_s = patience_s
        self._schema = schema
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def stage(self, key: BatchKey, run: str, attempt: str, number: int, chunk: Chunk) -> bool:
        """Stage a chunk of an attempt. False: the batch is bound already, and nothing was staged. Raises
        `BadRow` for the first row that the database refuses."""
        first = {
            **_one(key.namespace, key.query, key.batch, run, attempt),
            "number": _array([number], "int32"),
        }
        sql = _STAGE_CHANGES if "targets" in chunk.arguments else _STAGE
        try:
            ((staged,),) = self._call(sql, {**first, **chunk.arguments})
        except _UnfitError as error:
            raise chunk.bad_row(error.row, error.why) from None
        return bool(staged)

    def bind(
        self, key: BatchKey, attempts: Sequence[str], rows: Sequence[int], total: int, verify: bool
    ) -> None:
        """Bind the batch to attempts, unless it is bound already. Raises `BatchChanged`."""
        import pyarrow as pa

        arguments = {
            **_one(key.namespace, key.query, key.batch),
            "attempts": pa.array([list(attempts)], pa.list_(pa.string())),
            "rows": pa.array([list(rows)], pa.list_(pa.int64())),
            "total": _array([total], "int64"),
            "verify": _array([verify], "bool"),
        }
        self._call(_BIND, arguments, key)

    def publish(self, key: BatchKey, *, skip: bool = False) -> None:
        """Publish the rest of a bound batch. A change that is refused raises `ChangeRefused`; with `skip` it
        is left out and logged."""
        sql = _PUBLISH_REST if skip else _PUBLISH
        rows = TRANSACTION_ROWS
        while True:
            try:
                counts = _one(key.namespace, key.query, key.batch, rows, *_ROOM)
                ((published, partitions, *refused),) = self._call(sql, counts, key, single=rows == 0)
            except _TooSlowError:
                # Several partitions take too long for one transaction, so from here on each has its own.
                rows = 0
                continue
            done = published == partitions
            _warn(key, *refused, done=done)
            if done:
                return

    def discard(self, attempts: Sequence[str]) -> None:
        """Delete attempts that no batch is bound to."""
        import pyarrow as pa

        self._call(_DISCARD, {"attempts": pa.array([list(attempts)], pa.list_(pa.string()))})

    def tidy(self, key: BatchKey) -> None:
        """Delete rows that are not needed once the batch is published."""
        self._call(_TIDY, _one(key.namespace, key.query, key.batch))

    def _call(
        self, sql: str, arguments: dict[str, pa.Array], key: BatchKey | None = None, *, single: bool = True
    ) -> list[tuple[Any, ...]]:
        """Repeat a statement until it has certainly been committed, or cannot be."""
        from adbc_driver_manager import Error

        deadline = time.monotonic() + self._patience_s
        pause_s = FIRST_PAUSE_S
        while True:
            begun = time.monotonic()
            try:
                return self._once(sql, arguments)
            except DatabaseUnreachable:
                self._close()
                if time.monotonic() > deadline:
                    raise
            except AccessDenied as error:
                raise _denied(error) from None
            except QueryFailed as error:
                # This error is from connecting. Errors of our own statements are not translated yet.
                if not _CROWDED.search(str(error)) or time.monotonic() > deadline:
                    raise
            except Error as error:
                self._close()
                slow = time.monotonic() - begun >= _PUBLISHING_S
                if not _may_pass(error) or time.monotonic() > deadline:
                    raise _failure(error, key, slow) from None
                if slow and not single:
                    raise _TooSlowError from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _once(self, sql: str, arguments: dict[str, pa.Array]) -> list[tuple[Any, ...]]:
        import pyarrow as pa

        from gapless_spark.database import connect

        if self._connection is None:
            self._connection = connect(self._url, self._schema)
            # One round trip, so that a publisher holds its locks no longer than the statement takes.
            self._connection.adbc_connection.set_autocommit(True)
        with self._connection.cursor() as cursor:
            cursor.execute(sql, pa.record_batch(list(arguments.values()), list(arguments)))
            return cursor.fetchall()

    def _close(self) -> None:
        from gapless_spark.database import close

        if self._connection is not None:
            close(self._connection)
            self._connection = None


class _TooSlowError(Exception):
    """Several partitions took longer than a publishing transaction may."""


class _UnfitError(GaplessSparkError):
    """A row of a chunk is not a message; `row` is counted from 0."""

    def __init__(self, row: int, why: str) -> None:
        super().__init__(f"row {row}: {why}")
        self.row = row
        self.why = why


def _warn(key: BatchKey, total: int = 0, said: str | None = None, *, done: bool) -> None:
    """Log which changes were left out, and at the end how many."""
    log = logging.getLogger("gapless_spark")
    for each in json.loads(said or "[]"):
        log.warning("%s: left out a change: %s", key.title, each)
    if total and done:
        log.warning("%s: left out %d changes that were refused", key.title, total)


def _array(values: list[Any], kind: str) -> pa.Array:
    import pyarrow as pa

    return pa.array(values, pa.type_for_alias(kind))


def _one(*values: str | int | None) -> dict[str, pa.Array]:
    """One row of scalars."""
    return {f"p{n}": _array([v], "int64" if isinstance(v, int) else "string") for n, v in enumerate(values)}


def _may_pass(error: Any) -> bool:
    # A connection that was cut leaves no SQLSTATE.
    return error.sqlstate is None or _AGAIN.fullmatch(error.sqlstate) is not None


def _failure(error: Any, key: BatchKey | None, slow: bool) -> GaplessSparkError:
    from gapless_spark.database import failure

    known = _shorter(failure(error))
    title = key.title if key else "this batch"
    if error.sqlstate == "GS001":
        return BatchChanged(
            f"{title}: {known}. The source or the query changed between the runs, or an older checkpoint was"
            " restored. What was published stays. If the query chooses its rows at random, set verifyReruns"
            " to false; otherwise begin with a new checkpoint (or writeId) from where the messages end"
        )
    if error.sqlstate == "GS002":
        return BatchChanged(
            f"{title}: {known}. Another run of this query is ahead, or an older checkpoint was restored. End"
            " the other run, or begin with a new checkpoint from where the messages end"
        )
    if error.sqlstate == "GS004" and (unfit := _UNFIT.search(str(known))):
        return _UnfitError(int(unfit[1]) - 1, unfit[2])
    if error.sqlstate == "GS005":
        return ChangeRefused(
            f"{title}: {known}. Nothing of this transaction is published, and what is staged stays. Run the"
            " query or job again: it publishes the rest, once. If the cause remains, run it with the option"
            " refusedChanges set to skip: it leaves out the changes that are refused"
        )
    if error.sqlstate == "GS003":
        return BatchIncomplete(
            f"{title}: {known}. This run published nothing of it; run the query or job again"
        )
    if key is not None and (slow or (_may_pass(error) and error.sqlstate is not None)):
        why = "Postgres ended the transaction, which took too long" if slow else known
        return BatchIncomplete(
            f"{title} could not be published whole: {why}. Others hold its channels, or its partitions are"
            " too large for the 5 s of a publishing transaction (repartition to more). Run the query or job"
            " again: it publishes the rest, once"
        )
    return _denied(known) if isinstance(known, AccessDenied) else known


def _shorter(error: GaplessSparkError) -> GaplessSparkError:
    """The error without the context in our SQL functions and without the driver's prefix."""
    text = re.sub(r"Failed to execute prepared statement: |PGRES_FATAL_ERROR ", "", str(error))
    return type(error)(re.sub(r" CONTEXT: .*?(?=\. Use a role|\. Check that|$)", "", text))


def _denied(error: AccessDenied) -> AccessDenied:
    """The error with the role that the sink needs."""
    return AccessDenied(str(error).replace("grant_reader", "grant_publisher"))
