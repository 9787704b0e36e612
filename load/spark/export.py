"""`python -m load.spark.export`: checks that an export has each message once, although it is killed.

Four writers publish in SQL transactions, which commit in another order than their ids, and of which one in
ten is rolled back. Meanwhile `./gapless export --follow` runs, and all its processes are killed at once with
SIGKILL, ten times at random moments. Meanwhile a reader polls the folder. At the end the export runs once
more to completion, and is read with other programs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from load import drill
from load.children import CHECKOUT, Child, kill, tree
from load.drill import say
from load.sequence import check_sequence
from load.server import serving
from load.verdict import Breach, Verdict
from load.waiting import PATIENCE_S, until

FORMATS = ("parquet", "delta", "iceberg")
WRITERS = 4
ROLLED_BACK = 0.1
TRANSACTION = 25
SPARK_PATIENCE_S = 10 * PATIENCE_S
_APPEND = "select gapless_internal.append_outbox()"
"""Takes the ids before the commit, as in a slow publisher. Only the owner may call it."""
_PUBLISH = (
    "select count(gapless.publish(c, json_build_object('n', n, 'text', repeat('x', 40 + n % 160))::jsonb))"
    " from unnest($1::text[], $2::int[]) as t (c, n)"
)


async def write(url: str, number: int, rate: float, over: asyncio.Event, seed: int) -> None:
    """Publish about `rate` messages a second, in transactions that end out of order."""
    import asyncpg

    rng = random.Random(seed * 100 + number)
    connection = await asyncpg.connect(url)
    pause = TRANSACTION / rate
    due = time.monotonic()
    while not over.is_set():
        transaction = connection.transaction()
        await transaction.start()
        # A channel is locked until its transaction ends, so each writer has its own channels.
        names = [f"load.w{number}.c{rng.randrange(5)}" for _ in range(TRANSACTION)]
        await connection.fetchval(_PUBLISH, names, list(range(TRANSACTION)))
        if rng.random() < ROLLED_BACK:
            await connection.execute(_APPEND)  # the rollback loses the ids that this takes
            await asyncio.sleep(rng.random() * 0.02)
            await transaction.rollback()
        else:
            await connection.execute(_APPEND)
            await asyncio.sleep(rng.random() * 0.02)
            await transaction.commit()
        due += pause
        await asyncio.sleep(max(0.0, due - time.monotonic()))
    await connection.close()


class Poller:
    """Reads the ids of the export repeatedly, as an independent reader."""

    def __init__(self, root: Path, format_: str, verdict: Verdict) -> None:
        self.looks = 0
        self._root, self._format, self._verdict = root, format_, verdict
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self._seen = 0
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._stop.wait(0.05):
            if not any(self._root.rglob("*.parquet")):
                continue  # there is no table yet
            try:
                ids = look(self._root, self._format)
            except Exception as error:  # noqa: BLE001 (any error of a reader is a breach)
                self._verdict.add(Breach.FAILED, f"a look: {error}")
                continue
            self.looks += 1
            self._verdict.add(Breach.DOUBLED, f"in look {self.looks}", len(ids) - len(set(ids)))
            # Messages must not disappear between two looks.
            self._verdict.add(Breach.LOST, f"gone in look {self.looks}", self._seen - len(ids))
            self._seen = len(ids)


def look(root: Path, format_: str) -> list[int]:
    """The ids that a reader finds now. A plain folder is listed, and the listed files are read."""
    if format_ != "parquet":
        (ids,) = readers(root, format_, spark=False).values()
        return ids
    import pyarrow.parquet as pq

    files = sorted(root.glob("date=*/*.parquet"))
    return [id_ for file in files for id_ in pq.ParquetFile(file).read(["id"]).column(0).to_pylist()]


def export_child(root: Path, url: str, format_: str, log: Path, *, follow: bool) -> Child:
    """`./gapless export`, in its own process group."""
    more = ["--follow", "--interval", "0.3"] if follow else []
    command = [str(CHECKOUT / "gapless"), "export", "--to", str(root), "--format", format_, *more]
    command += ["--master", "local[2]", "--json", "--file-bytes", str(4 * 1024 * 1024)]
    return Child(command, log, {"GAPLESS_DATABASE_URL": url, "PYTHONWARNINGS": "ignore"}).start()


async def storm(url: str, root: Path, format_: str, args: argparse.Namespace, verdict: Verdict) -> str:
    """Run writers and an export that is killed, then stop the writers and export the rest. Returns a
    summary."""
    over = asyncio.Event()
    writers = [
        asyncio.create_task(write(url, n, args.rate / WRITERS / (1 - ROLLED_BACK), over, args.seed))
        for n in range(WRITERS)
    ]
    rng = random.Random(args.seed)
    log = root.parent / f"export-{format_}.log"
    poller = Poller(root, format_, verdict)
    began_at = time.monotonic()
    for _ in range(args.kills):
        child = export_child(root, url, format_, log, follow=True)
        # The kill comes before it has started, or at any moment of its batches.
        await asyncio.sleep(rng.uniform(*args.between))
        if child.code() is not None:
            raise RuntimeError(f"the export ended by itself with {child.code()}:\n{child.tail()}")
        kill(tree(child.pid))
        child.stop()
    rate = len(await stored_ids(url)) / (time.monotonic() - began_at)
    over.set()
    await asyncio.gather(*writers)
    child = export_child(root, url, format_, log, follow=False)
    await until(lambda: child.code() is not None, "the last export ends", SPARK_PATIENCE_S)
    if child.code():
        raise RuntimeError(f"the last export ended with {child.code()}:\n{child.tail()}")
    await asyncio.to_thread(poller.stop)
    if not poller.looks:
        raise RuntimeError("the reader could not read the export while it ran")
    return f"published at {rate:,.0f}/s, {args.kills} kills, {poller.looks} looks"


async def stored_ids(url: str) -> set[int]:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        return {row[0] for row in await connection.fetch("select id from gapless.messages")}
    finally:
        await connection.close()


def readers(root: Path, format_: str, *, spark: bool) -> dict[str, list[int]]:
    """The ids that each reader of the format finds."""
    found: dict[str, list[int]] = {}
    if format_ == "parquet":
        import duckdb
        import pyarrow.dataset as ds

        query = f"select id from read_parquet('{root}/**/*.parquet')"
        relation = duckdb.sql(query)
        assert relation is not None
        found["duckdb"] = relation.to_arrow_table().column("id").to_pylist()
        folder = ds.dataset(root, format="parquet", partitioning="hive")
        found["pyarrow"] = folder.to_table(columns=["id"]).column("id").to_pylist()
        if spark:
            found["spark"] = _by_spark(root)
    elif format_ == "delta":
        import deltalake
        import pyarrow as pa

        table = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(root)))
        found["deltalake"] = pa.table(table.execute("select id from t").read_all()).column("id").to_pylist()
    else:
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("gapless", uri=f"sqlite:///{root}/catalog.db")
        scan = catalog.load_table("gapless.messages").scan(selected_fields=("id",))
        found["pyiceberg"] = scan.to_arrow().column("id").to_pylist()
    return found


def _by_spark(root: Path) -> list[int]:
    from gapless_spark.session import SessionOptions, start

    session = start(SessionOptions("check", "local[2]", quick=True))
    try:
        return [row.id for row in session.read.parquet(str(root)).select("id").collect()]
    finally:
        session.stop()


async def check(format_: str, args: argparse.Namespace, home: Path) -> Verdict:
    """Check one format on a new service."""
    verdict = Verdict()
    async with serving() as server:
        url = server.postgres_url()
        root = home / "out"
        done = await storm(url, root, format_, args, verdict)
        expected = await stored_ids(url)
    found = readers(root, format_, spark=not args.short)
    for name, ids in found.items():
        compare(name, ids, expected, verdict)
    verdict.checked = f"{format_}: {len(expected):,} in the database, {done}; read by {', '.join(found)}"
    return verdict


def compare(name: str, ids: list[int], expected: set[int], verdict: Verdict) -> None:
    """A reader must find each message of the database once. The order does not matter."""
    check_sequence(name, sorted(ids), sorted(expected), verdict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once, each format in turn."""
    parser = drill.parser("spark.export", __doc__, "", "--short --format parquet")
    parser.add_argument("--format", choices=FORMATS, action="append", help="only these")
    parser.add_argument("--kills", type=int, default=None, help="ten, or two with --short")
    parser.add_argument("--rate", type=float, default=2500.0, help="messages a second")
    parser.add_argument("--short", action="store_true", help="two kills a format, no Spark as a reader")
    drill.add_seed(parser)
    drill.add_keep(parser)
    args = parser.parse_args(arguments)
    args.kills = args.kills if args.kills is not None else 2 if args.short else 10
    args.between = (5.0, 8.0) if args.short else (4.0, 14.0)
    say(f"seed {args.seed}")
    total = Verdict()
    for format_ in args.format or FORMATS:
        home = drill.home("export")
        verdict = drill.played(partial(asyncio.run, check(format_, args, home)))
        drill.leave(home, f"export-{format_}", verdict, keep=args.keep)
        if verdict is None:
            return drill.conclude(None)
        say(f"{verdict.checked}: {verdict.line()}")
        total.include(verdict, format_)
    return drill.conclude(total)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.exit(main())
