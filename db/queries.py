"""Loads the named blocks of `db/sql/*.sql`. The service has SQL only there.

A block begins with `-- name: some_name` and ends where the next begins; its comments are kept.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_NAME = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)
SQL_DIR = Path(__file__).with_name("sql")


def parse(text: str) -> dict[str, str]:
    """Blocks of one file by name. Raises ValueError for a name given twice or text before the first."""
    parts = _NAME.split(text)
    if parts[0].strip():
        raise ValueError("SQL before the first '-- name:'")
    blocks: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if name in blocks:
            raise ValueError(f"block {name} is there twice")
        blocks[name] = body.strip()
    return blocks


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
