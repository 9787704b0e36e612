"""Reads the recorded chat that the run publishes: one JSON message a line, gzipped."""

from __future__ import annotations

import gzip
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from load.history import History, digest_of


def messages(path: Path, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """The first `limit` messages of a file, or all."""
    with gzip.open(path, "rb") as lines:
        for line in itertools.islice(lines, limit):
            yield msgspec.json.decode(line)


def shortened(path: Path, limit: int | None, folder: Path) -> Path:
    """A file with the first `limit` messages; the given file if there is no limit."""
    if limit is None:
        return path
    short = folder / f"first-{limit}.jsonl.gz"
    with gzip.open(path, "rb") as lines, gzip.open(short, "wb", compresslevel=1) as out:
        out.writelines(itertools.islice(lines, limit))
    return short


def announce(history: History, path: Path) -> Counter[str]:
    """Note every message of a file as an attempt to publish. Returns the number of messages of each
    channel."""
    sizes: Counter[str] = Counter()
    for message in messages(path):
        history.invoke(message["channel"], digest_of(message))
        sizes[message["channel"]] += 1
    return sizes
