"""Loads the named blocks of `db/sql/*.sql`. The service has SQL only there.

A block begins with `-- name: some_name` and ends where the next begins; its comments are kept. Above
the blocks, `-- calls: ack(3), reap(3)` makes one for each function of the schema `gapless` that is only
called, with so many arguments.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_NAME = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)
_CALLS = re.compile(r"^-- calls: (.+)$", re.MULTILINE)
_CALL = re.compile(r"([a-z_]+)\((\d+)\)")
SQL_DIR = Path(__file__).with_name("sql")


def parse(text: str) -> dict[str, str]:
    """Blocks of one file by name. Raises ValueError for a name given twice or text before the first."""
    before, *parts = _NAME.split(text)
    if _CALLS.sub("", before).strip():
        raise ValueError("SQL before the first '-- name:'")
    calls = [_call(one) for line in _CALLS.findall(before) for one in line.split(", ")]
    blocks: dict[str, str] = {}
    for name, body in (*calls, *zip(parts[::2], parts[1::2], strict=True)):
        if name in blocks:
            raise ValueError(f"block {name} is there twice")
        blocks[name] = body.strip()
    return blocks


def _call(text: str) -> tuple[str, str]:
    """The block that only calls a function: its name, and its SQL."""
    found = _CALL.fullmatch(text)
    if found is None:
        raise ValueError(f"no call: {text}")
    places = ", ".join(f"${number}" for number in range(1, int(found[2]) + 1))
    return found[1], f"select * from gapless.{found[1]}({places})"  # noqa: S608 — from our own files


@cache
def load() -> dict[str, str]:
    """All blocks of all files by name. Raises ValueError when a name stands in two files."""
    blocks: dict[str, str] = {}
    for file in sorted(SQL_DIR.glob("*.sql")):
        for name, body in parse(file.read_text()).items():
            if name in blocks:
                raise ValueError(f"block {name} is in {file.name} and in another file")
            blocks[name] = body
    return blocks
