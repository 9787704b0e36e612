"""Writes the blocking face of the client from the asyncio one, where only `await` differs.

`python client/unasync.py` writes the files of `PAIRS`; with `--check` it only says which are out of date.
Streams, members and consumers are written by hand: waiting for several things at once has no blocking twin of
the same shape. `AsyncConnecting` has no twin: one socket for many callers would need threads of its own. The
idea is that of httpcore's script of the same name.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

FACE = Path(__file__).resolve().parent / "gapless"
NOUNS = ("channels", "dead_letters", "definitions", "markers", "policies", "scheduled", "subscriptions")
PAIRS = ("calls", "client", "conversation", "nouns", "queue", *NOUNS)
"""The parts of both faces, by their names in `_async` and `_sync`."""
RULES = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"from gapless._async.connecting import AsyncConnecting\n", ""),
        (r", AsyncConnecting\b", ""),
        (r"\basync (def|with|for)\b", r"\1"),
        (r"\bawait ", ""),
        (r"\bAsync([A-Z]\w*)", r"\1"),
        (r"\b_async\b", "_sync"),
        (r"\baclose\b", "close"),
        (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
        (r"\bAsynchronous\b", "Blocking"),
        (r"\bA client for asyncio\.", "A blocking client; threads may share it."),
        (
            r"After a fork, what the parent used .*`\.",
            "A forked child has its own connections; an `http_client` that the parent used is refused.",
        ),
        (r"\bon asyncio\b", "on the calling thread"),
        (r"\basyncio face\b", "blocking face"),
        (r"for item in (\S+):\n +yield item\b", r"yield from \1"),
    )
)
HEAD = "# Written by client/unasync.py from {name}: change that file, and run the script.\n"


def blocking(source: Path) -> str:
    """The blocking twin of an asyncio file, formatted."""
    text = source.read_text()
    for pattern, replacement in RULES:
        text = pattern.sub(replacement, text)
    text = HEAD.format(name=source.relative_to(FACE)) + text
    for command in (["check", "--fix", "--quiet", "--select", "I"], ["format", "--quiet"]):
        ruff = [str(Path(sys.executable).with_name("ruff")), *command]
        name = ["--stdin-filename", str(twin(source)), "-"]
        text = subprocess.run([*ruff, *name], input=text, capture_output=True, text=True, check=True).stdout
    return text


def twin(source: Path) -> Path:
    """Where the twin stands."""
    return FACE / "_sync" / source.name


def main(arguments: list[str]) -> int:
    """Write what is out of date, or say so. The exit code: 1 where `--check` found something."""
    stale = 0
    for part in PAIRS:
        source = FACE / "_async" / f"{part}.py"
        wanted = blocking(source)
        if twin(source).read_text() == wanted:
            continue
        stale += 1
        if "--check" in arguments:
            print(f"{twin(source).relative_to(FACE)} is out of date: run client/unasync.py")
        else:
            twin(source).write_text(wanted)
            print(f"wrote {twin(source).relative_to(FACE)}")
    return int(stale > 0 and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
