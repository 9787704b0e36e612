"""The common parts of all drills: their arguments, their exit codes, and their files.

A drill is run with `python -m`. Its `--help` has examples. It prints one line with a verdict, and exits with
0 without a breach, 1 with one, and 2 if there is no verdict because the run itself failed.
"""

from __future__ import annotations

import argparse
import random
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from load.children import CHECKOUT, raise_file_limit
from load.verdict import NO_VERDICT, NoVerdictError, Verdict

RESULTS = CHECKOUT / "load" / "results"
"""The folder for the results of runs; git ignores it."""

say = partial(print, flush=True)


def parser(name: str, about: str | None, *examples: str) -> argparse.ArgumentParser:
    """The parser of `python -m load.NAME`. Each of `examples` is a line of arguments for the help."""
    program = f"python -m load.{name}"
    lines = "\n".join(f"  {program} {example}".rstrip() for example in examples)
    codes = "exit codes: 0 no breach; 1 a breach; 2 no verdict, because the run failed"
    return argparse.ArgumentParser(
        prog=program,
        description=about,
        epilog=f"examples:\n{lines}\n\n{codes}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_seed(options: argparse.ArgumentParser) -> None:
    """`--seed`: the same seed makes the same plan, not the same run."""
    seed = random.SystemRandom().randrange(10**6)
    options.add_argument("--seed", type=int, default=seed, help="the same seed makes the same plan")


def add_keep(options: argparse.ArgumentParser) -> None:
    """`--keep`, for a run with a folder of its own."""
    options.add_argument("--keep", action="store_true", help="also keep the files of a clean run")


def add_minutes(options: argparse.ArgumentParser, minutes: float) -> None:
    """`--minutes`: the length of the run, without its start and end."""
    options.add_argument("--minutes", type=float, default=minutes, help=f"how long; {minutes:g} by default")


def played(play: Callable[[], Verdict]) -> Verdict | None:
    """The verdict of a run; None if the run itself failed. That failure is printed."""
    raise_file_limit()
    try:
        return play()
    except NoVerdictError as error:
        say(f"no verdict: {error}")
        return None
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
    """A new folder for a run, for `leave`."""
    return Path(mkdtemp(prefix=f"gapless-{name}-"))


@contextmanager
def temporary_home(name: str) -> Iterator[Path]:
    """A new folder until the block ends, when it is removed."""
    with TemporaryDirectory(prefix=f"gapless-{name}-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def leave(folder: Path, name: str, verdict: Verdict | None, *, keep: bool = False) -> None:
    """Remove the folder of a clean run. Keep that of any other run with its verdict, to find the cause."""
    if verdict is not None and verdict.ok and not keep:
        shutil.rmtree(folder, ignore_errors=True)
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    kept = RESULTS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    shutil.move(folder, kept)
    (kept / "verdict.txt").write_text(f"{verdict.report() if verdict else 'no verdict'}\n")
    say(f"kept in {kept}")
