"""`python -m load.bench [--only NAME] [--short] [--json FILE]` measures ratios; exit code 1: one is short."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from load.bench import batch, fanout, herd, latency, memory, publish
from load.bench.figure import Figure, UnfitError, Word
from load.bench.noise import Noise
from load.bench.queue import bloat, rates
from load.children import raise_file_limit

Bench = Callable[[bool, Callable[[str], None]], Awaitable[list[Figure]]]

ALL: dict[str, Bench] = {
    "publish": publish.run,
    "batch": batch.run,
    "fanout": fanout.run,
    "latency": latency.run,
    "memory": memory.run,
    "herd": herd.run,
    "queue": rates.run,
    "bloat": bloat.run,
}


DISTURBED = 0.1
"""A share of the machine that other programs may take before a measurement is called disturbed."""


def table(figures: list[Figure]) -> Table:
    """The figures as people read them."""
    grid = Table("what", "Gapless", "peer", "score", "goal", "", "checked", title="Gapless against its peers")
    for figure in figures:
        sign = "≥" if figure.more_is_better else "≤"
        goal = "" if figure.goal == float("inf") else f"{sign} {figure.goal:g}"
        peer = "" if figure.peer is None else f"{_short(figure.peer)} {figure.unit}"
        colour = "green" if figure.word is Word.PASS else "red"
        word = f"[{colour}]{figure.word}[/]" if goal else ""
        score = f"{figure.score:.2f}" if figure.peer is not None else f"{figure.score:.1f} {figure.unit}"
        grid.add_row(
            figure.name, f"{_short(figure.ours)} {figure.unit}", peer, score, goal, word, figure.checked
        )
    return grid


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def save(figures: list[Figure], failures: list[str], shares: dict[str, float], path: Path) -> None:
    """Keep the figures for a machine to read, with the share of it that other programs took meanwhile."""
    rows = [{**asdict(figure), "word": figure.word} for figure in figures]
    for row in rows:
        row["goal"] = None if row["goal"] == float("inf") else row["goal"]
    facts = {"python": platform.python_version(), "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    path.write_text(
        json.dumps(
            {"facts": facts, "figures": rows, "failures": failures, "taken_by_others": shares}, indent=1
        )
        + "\n"
    )


def parser_of_options() -> argparse.ArgumentParser:
    """What may be asked for."""
    parser = argparse.ArgumentParser(prog="python -m load.bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(ALL), help="may be given several times")
    parser.add_argument("--short", action="store_true", help="seconds in place of minutes; less steady")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--messages", type=int, help="of bloat: how many, a multiple of 1000")
    parser.add_argument("--pin-seconds", type=float, help="of bloat: how long the snapshot is held")
    return parser


def main() -> int:
    """Run the chosen benchmarks one after the other."""
    options = parser_of_options().parse_args()
    benches = ALL | {"bloat": partial(bloat.run, messages=options.messages, pin_s=options.pin_seconds)}
    raise_file_limit()
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)  # a log has no edge that the table must fit
    figures: list[Figure] = []
    failures: list[str] = []
    shares: dict[str, float] = {}
    for name in options.only or ALL:
        noise = Noise()
        try:
            figures += uvloop.run(_run(benches[name], options.short, console))
        except (UnfitError, RuntimeError, OSError, TimeoutError) as error:
            failures.append(f"{name}: {error!r}")
            console.print(f"{name} gave no figure: {error}", style="bold red", markup=False)
        share = shares[name] = noise.share()
        warning = ": the figures above are disturbed" if share > DISTURBED else ""
        console.print(f"{name}: other programs took {share:.0%} of the machine{warning}", highlight=False)
    console.print(table(figures))
    if options.json:
        save(figures, failures, shares, options.json)
    return 1 if failures or any(figure.word is Word.SHORT for figure in figures) else 0


async def _run(bench: Bench, short: bool, console: Console) -> list[Figure]:
    return await bench(short, lambda text: console.print(text, markup=False, highlight=False))


if __name__ == "__main__":
    sys.exit(main())
