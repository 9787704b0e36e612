"""Whether an export holds each message once, whatever is killed: `python -m load.spark.export`.

Four writers publish by SQL in transactions of their own, whose commits come in another order than their ids
and of which one in ten is rolled back. Meanwhile `./gapless export --follow` runs, and its processes are
killed with -9 ten times at random moments, all at once. All the while a reader polls the folder as any reader
would. At the end the export is run once more to completion, and read by others than the one who wrote it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from load.children import CHECKOUT, Child, kill, tree
from load.server import serving

FORMATS = ("parquet", "delta", "iceberg")
WRITERS = 4
ROLLED_BACK = 0.1
TRANSACTION = 25
_APPEND = "select gapless.append_outbox()"
"""Takes the ids before the commit, as a publisher that is slow to end: only the owner can."""
_PUBLISH = (
    "select count(gapless.publish(c, json_build_object('n', n, 'text', repeat('x', 40 + n % 160))::jsonb))"
    " from unnest($1::text[], $2::int[]) as t (c, n)"
)


@dataclass(slots=True)
class Outcome:
    """What was seen. `doubled` are ids the polling reader saw twice in one look; `broken` looks it could not
    finish."""

    rows: int = 0
    distinct: int = 0
    stored: int = 0
    missing: int = 0
    looks: int = 0
    broken: int = 0
    doubled: int = 0
    vanished: int = 0
    kills: int = 0
    published_per_s: float = 0.0
    readers: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether the export is the database, once, for each reader, at each moment."""
        counts = {(self.stored, self.stored)}
        return (
            set(self.readers.values()) == counts
            and not (self.missing or self.doubled or self.vanished or self.broken)
            and self.looks > 0
        )

    def line(self) -> str:
        readers = ", ".join(
            f"{name} {rows:,}/{distinct:,}" for name, (rows, distinct) in self.readers.items()
        )
        return (
            f"{self.stored:,} in the database at {self.published_per_s:,.0f}/s, {self.kills} kills;"
            f" rows/distinct: {readers}; {self.missing} missing; {self.looks} looks: {self.doubled} doubled,"
            f" {self.vanished} vanished, {self.broken} failed"
        )


async def write(url: str, number: int, rate: float, until: asyncio.Event, seed: int) -> None:
    """Publish about `rate` messages a second, in transactions that end out of order."""
    import asyncpg

    rng = random.Random(seed * 100 + number)
    connection = await asyncpg.connect(url)
    pause = TRANSACTION / rate
    due = time.monotonic()
    while not until.is_set():
        transaction = connection.transaction()
        await transaction.start()
        # A channel is locked until its transaction ends, so each writer has some of its own.
        names = [f"load.w{number}.c{rng.randrange(5)}" for _ in range(TRANSACTION)]
        await connection.fetchval(_PUBLISH, names, list(range(TRANSACTION)))
        if rng.random() < ROLLED_BACK:
            await connection.execute(_APPEND)  # the ids are taken, and lost
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
    """Reads the ids of the export again and again, as a reader that knows of nothing else would."""

    def __init__(self, root: Path, format_: str, outcome: Outcome) -> None:
        self._root = root
        self._format = format_
        self._outcome = outcome
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
            except Exception as error:  # noqa: BLE001 (whatever a reader trips over is what is looked for)
                self._outcome.broken += 1
                print(f"  a look failed: {error}", flush=True)
                continue
            self._outcome.looks += 1
            self._outcome.doubled += len(ids) - len(set(ids))
            # What was there must not be gone a moment later.
            self._outcome.vanished += max(0, self._seen - len(ids))
            self._seen = len(ids)


def look(root: Path, format_: str) -> list[int]:
    """The ids that a reader finds now; of a plain folder by listing it and opening what was listed."""
    if format_ != "parquet":
        (ids,) = readers(root, format_, spark=False).values()
        return ids
    import pyarrow.parquet as pq

    files = sorted(root.glob("date=*/*.parquet"))
    return [id_ for file in files for id_ in pq.ParquetFile(file).read(["id"]).column(0).to_pylist()]


def export_child(root: Path, url: str, format_: str, log: Path, *, follow: bool) -> Child:
    """`./gapless export`, in a process group of its own."""
    more = ["--follow", "--interval", "0.3"] if follow else []
    command = [str(CHECKOUT / "gapless"), "export", "--to", str(root), "--format", format_, *more]
    command += ["--master", "local[2]", "--json", "--file-bytes", str(4 * 1024 * 1024)]
    return Child(command, log, {"GAPLESS_DATABASE_URL": url, "PYTHONWARNINGS": "ignore"}).start()


async def storm(url: str, root: Path, format_: str, args: argparse.Namespace, outcome: Outcome) -> None:
    """Writers on, export on, kills; then writers off and one export to the end."""
    until = asyncio.Event()
    writers = [
        asyncio.create_task(write(url, n, args.rate / WRITERS / (1 - ROLLED_BACK), until, args.seed))
        for n in range(WRITERS)
    ]
    rng = random.Random(args.seed)
    log = root.parent / f"export-{format_}.log"
    poller = Poller(root, format_, outcome)
    began_at = time.monotonic()
    for _ in range(args.kills):
        child = export_child(root, url, format_, log, follow=True)
        # Before it has started, and at any moment of the batches that follow.
        await asyncio.sleep(rng.uniform(*args.between))
        if child.code() is not None:
            raise RuntimeError(f"the export ended by itself with {child.code()}:\n{child.tail()}")
        kill(tree(child.pid))
        child.stop()
        outcome.kills += 1
    outcome.published_per_s = await count(url) / (time.monotonic() - began_at)
    until.set()
    await asyncio.gather(*writers)
    child = export_child(root, url, format_, log, follow=False)
    while child.code() is None:
        await asyncio.sleep(0.1)
    if child.code():
        raise RuntimeError(f"the last export ended with {child.code()}:\n{child.tail()}")
    await asyncio.to_thread(poller.stop)


async def count(url: str) -> int:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("select count(*) from gapless.messages"))
    finally:
        await connection.close()


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


async def check(format_: str, args: argparse.Namespace) -> Outcome:
    """One format on a service, a database and a folder of its own."""
    outcome = Outcome()
    home = Path(tempfile.mkdtemp(prefix="gapless-export-"))
    try:
        async with serving() as server:
            url = f"postgresql://gapless_owner@/gapless?host={server.home}/run&port=5432"
            root = home / "out"
            await storm(url, root, format_, args, outcome)
            expected = await stored_ids(url)
        outcome.stored = len(expected)
        for name, ids in readers(root, format_, spark=not args.short).items():
            outcome.readers[name] = (len(ids), len(set(ids)))
            outcome.missing += len(expected ^ set(ids))
        if not outcome.ok and args.keep:
            print(f"  kept: {home}")
        return outcome
    finally:
        if not args.keep:
            shutil.rmtree(home, ignore_errors=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: each format is exact; 1: one is not; 2: no verdict."""
    parser = argparse.ArgumentParser(prog="python -m load.spark.export", description=__doc__)
    parser.add_argument("--format", choices=FORMATS, action="append", help="only these")
    parser.add_argument("--kills", type=int, default=None, help="ten, or two with --short")
    parser.add_argument("--rate", type=float, default=2500.0, help="messages a second")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10_000))
    parser.add_argument("--short", action="store_true", help="two kills a format, no Spark as a reader")
    parser.add_argument("--keep", action="store_true", help="keep the folders")
    args = parser.parse_args(arguments)
    args.kills = args.kills if args.kills is not None else 2 if args.short else 10
    args.between = (5.0, 8.0) if args.short else (4.0, 14.0)
    print(f"seed {args.seed}", flush=True)
    good = True
    for format_ in args.format or FORMATS:
        try:
            outcome = asyncio.run(check(format_, args))
        except (RuntimeError, OSError) as error:
            print(f"{format_}: no verdict: {error}")
            return 2
        good &= outcome.ok
        print(f"{format_}: {'exact' if outcome.ok else 'BROKEN'}: {outcome.line()}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    sys.exit(main())
