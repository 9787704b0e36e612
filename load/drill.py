"""The common parts of all drills: their arguments, their exit codes, and their files.

A drill is run with `python -m`. Its `main` takes arguments, has `--help` with examples, prints one line with
a verdict, and exits with 0 without a breach, 1 with one, and 2 if there is no verdict because the run itself
failed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from load.children import CHECKOUT, raise_file_limit
from load.verdict import NO_VERDICT, Verdict

RESULTS = CHECKOUT / "load" / "results"
"""The folder for the results of runs; git ignores it."""

say = partial(print, flush=True)


def parser(name: str, about: str | None, *examples: str) -> argparse.ArgumentParser:
    """The parser of `python -m load.NAME`. Each of `examples` is a line of arguments for the help."""
    program = f"python -m load.{name}"
    lines = "\n".join(f"  {program} {example}".rstrip() for example in examples)
    codes = "exit codes: 0 the promise held; 1 it did not; 2 no verdict"
    return argparse.ArgumentParser(
        prog=program,
        description=about,
        epilog=f"examples:\n{lines}\n\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_seed(options: argparse.ArgumentParser) -> None:
    """`--seed`: the same seed makes the same plan, not the same run."""
    seed = random.SystemRandom().randrange(10**6)
    options.add_argument("--seed", type=int, default=seed, help="makes the same plan again")


def add_keep(options: argparse.ArgumentParser) -> None:
    """`--keep`, for a run that has a home."""
    options.add_argument("--keep", action="store_true", help="keep the home of a clean run too")


def add_minutes(options: argparse.ArgumentParser, minutes: float) -> None:
    """`--minutes`: the length of the run, without its start and end."""
    options.add_argument("--minutes", type=float, default=minutes, help=f"how long; {minutes:g} by default")


def played(play: Callable[[], Verdict]) -> Verdict | None:
    """The verdict of a run; None if the run itself failed, which is printed."""
    raise_file_limit()
    try:
        return play()
    except Exception:  # noqa: BLE001 (any failure is printed, and means that there is no verdict)
        say(f"no verdict: {traceback.format_exc()}")
        return None


def conclude(verdict: Verdict | None) -> int:
    """Print the verdict. Returns the exit code."""
    if verdict is None:
        return NO_VERDICT
    say(verdict.report())
    return verdict.exit_code


def home(name: str) -> Path:
    """A new folder for a run."""
    return Path(tempfile.mkdtemp(prefix=f"gapless-{name}-"))


def leave(folder: Path, name: str, verdict: Verdict | None, *, keep: bool = False) -> None:
    """Remove the home of a clean run. The home of any other run is kept with its verdict, to find the
    cause."""
    if verdict is not None and verdict.ok and not keep:
        shutil.rmtree(folder, ignore_errors=True)
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = RESULTS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    shutil.move(folder, kept)
    (kept / "verdict.txt").write_text(f"{verdict.report() if verdict else 'no verdict'}\n")
    say(f"kept in {kept}")
