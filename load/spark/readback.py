"""`python -m load.spark.readback FILE`: checks that every format of the export keeps a chat unchanged.

The chat is imported, exported in every format, and read back. Each message must be there once, unchanged.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow.dataset as ds

from load import drill
from load.drill import say
from load.server import LAUNCHER, Server, serving
from load.verdict import Breach, Verdict

Contents = dict[str, set[tuple[int, bytes]]]
"""For each channel the (seq, hash of data) of every message."""

COLUMNS = ["id", "channel", "seq", "data"]


def digest(data: str | None) -> bytes:
    """The hash of the stored text, byte by byte."""
    return hashlib.blake2b((data or "").encode(), digest_size=12).digest()


async def of_database(server: Server) -> Contents:
    """The contents of the log."""
    found: Contents = defaultdict(set)
    session = await server.connect()
    async with session.transaction():
        async for row in session.cursor(
            "select c.name, m.seq, m.data::text as data from gapless.messages m"
            " join gapless.channels c on c.id = m.channel_id",
            prefetch=10_000,
        ):
            found[row["name"]].add((row["seq"], digest(row["data"])))
    await session.close()
    return found


def files_of(folder: Path, format_: str) -> list[str]:
    """The data files that a reader of this format sees, found with the format's own library."""
    if format_ == "delta":
        from deltalake import DeltaTable

        return list(DeltaTable(str(folder)).file_uris())
    if format_ == "iceberg":
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = SqlCatalog("gapless", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
        table = catalog.load_table(("gapless", "messages"))
        return [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    return [str(path) for path in folder.rglob("*.parquet") if not _hidden(path.relative_to(folder))]


def _hidden(path: Path) -> bool:
    """Whether readers of plain folders ignore a path: a part of it begins with a dot or an underscore."""
    return any(part.startswith((".", "_")) for part in path.parts)


def of_files(files: Iterable[str]) -> tuple[Contents, int]:
    """The contents of files, and the number of their rows."""
    found: Contents = defaultdict(set)
    rows = 0
    for batch in ds.dataset(list(files), format="parquet").to_batches(columns=COLUMNS):
        rows += batch.num_rows
        channels, seqs, data = (batch.column(name).to_pylist() for name in COLUMNS[1:])
        for channel, seq, text in zip(channels, seqs, data, strict=True):
            found[channel].add((seq, digest(text)))
    return found, rows


def judge(format_: str, wanted: Contents, found: Contents, rows: int, verdict: Verdict) -> None:
    """Compare what was read back with the log."""
    for channel in sorted(wanted.keys() | found.keys()):
        lost, new = wanted[channel] - found[channel], found[channel] - wanted[channel]
        verdict.add(Breach.LOST, f"{format_}: {channel}, missing or changed", len(lost))
        verdict.add(Breach.PHANTOM, f"{format_}: {channel}, not in the database", len(new))
    distinct = sum(map(len, found.values()))
    verdict.add(Breach.DOUBLED, f"{format_}: {rows:,} rows of {distinct:,} messages", rows - distinct)


def run(server: Server, *words: str) -> float:
    """Run one `./gapless` command. Returns its seconds. Raises RuntimeError if it fails."""
    started = time.monotonic()
    answer = subprocess.run(
        [LAUNCHER, *words], env={**os.environ, **server.env}, capture_output=True, text=True
    )
    if answer.returncode != 0:
        raise RuntimeError(f"{' '.join(words)} ended with {answer.returncode}:\n{answer.stderr}")
    return time.monotonic() - started


async def play(file: Path, formats: list[str], folder: Path) -> Verdict:
    """Import the chat, and check each format in turn."""
    verdict = Verdict((Breach.LOST, Breach.DOUBLED, Breach.PHANTOM))
    async with serving() as server:
        took = await asyncio.to_thread(run, server, "import", str(file))
        wanted = await of_database(server)
        rows = sum(map(len, wanted.values()))
        say(f"imported {rows:,} messages of {len(wanted)} channels in {took:.0f} s")
        for format_ in formats:
            target = folder / format_
            took = await asyncio.to_thread(
                run, server, "export", "--to", str(target), "--format", format_, "--quiet"
            )
            again = await asyncio.to_thread(run, server, "export", "--to", str(target), "--quiet")
            files = files_of(target, format_)
            found, count = of_files(files)
            judge(format_, wanted, found, count, verdict)
            size = sum(Path(path).stat().st_size for path in files) / 2**20
            what = f"{count:,} rows in {len(files)} files of {size:.1f} MiB"
            say(f"{format_}: {what}, {took:.1f} s, again {again:.1f} s")
        report = folder / "report.html"
        took = await asyncio.to_thread(
            run, server, "analyze", "--from", str(folder / formats[0]), "--report", str(report)
        )
        say(f"report: {report.stat().st_size / 2**20:.1f} MiB in {took:.0f} s")
        return verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once."""
    chat = "../shared/data/gitter-chat.jsonl.gz"
    parser = drill.parser("spark.readback", __doc__, chat, f"{chat} --formats parquet,delta")
    parser.add_argument("file", type=Path)
    parser.add_argument("--formats", default="parquet,delta,iceberg")
    parser.add_argument("--keep", type=Path, help="keep the exports and the report in this folder")
    chosen = parser.parse_args(arguments)
    with drill.temporary_home("readback") as folder:
        home = chosen.keep.absolute() if chosen.keep else folder
        home.mkdir(parents=True, exist_ok=True)
        formats = chosen.formats.split(",")
        return drill.conclude(drill.played(lambda: asyncio.run(play(chosen.file, formats, home))))


if __name__ == "__main__":
    sys.exit(main())
