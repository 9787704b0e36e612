"""`python -m load.bench`: compares the service with its peers on this machine, and checks the goals."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import uvloop

from load import drill
from load.bench import (
    batch,
    changes,
    connected,
    fanout,
    herd,
    latency,
    memory,
    opening,
    presence,
    publish,
    unread,
)
from load.bench.noise import Noise
from load.bench.queue import bloat, rates
from load.drill import say
from load.figure import Figure, UnfitError, show, verdict_on
from load.verdict import NoVerdictError, Verdict

Bench = Callable[[bool], Coroutine[None, None, list[Figure]]]

ALL: dict[str, Bench] = {
    "publish": publish.run,
    "websocket": connected.run,
    "batch": batch.run,
    "changes": changes.run,
    "fanout": fanout.run,
    "latency": latency.run,
    "memory": memory.run,
    "herd": herd.run,
    "opening": opening.run,
    "presence": presence.run,
    "unread": unread.run,
    "queue": rates.run,
    "bloat": bloat.run,
}

DISTURBED = 0.1
"""A measurement is disturbed if other programs took more than this share of the machine."""


def save(figures: list[Figure], failures: list[str], shares: dict[str, float], path: Path) -> None:
    """Write the figures as JSON, with the share of the machine that other programs took in each benchmark."""
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
    """The parser of the options."""
    parser = drill.parser("bench", __doc__, "", "--only fanout --short", "--json load/results/bench.json")
    parser.add_argument("--only", action="append", choices=list(ALL), help="only this one; may be repeated")
    parser.add_argument("--short", action="store_true", help="takes seconds, not minutes; less exact")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument(
        "--messages", type=int, help="for bloat and changes: how many messages; a multiple of 1000"
    )
    parser.add_argument("--pin-seconds", type=float, help="for bloat: how long the snapshot is held")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once."""
    options = parser_of_options().parse_args(arguments)
    return drill.conclude(drill.played(lambda: play(options)))


def play(options: argparse.Namespace) -> Verdict:
    """Run the chosen benchmarks in turn. Raises NoVerdictError as `judge` does."""
    benches = ALL | {
        "bloat": partial(bloat.run, messages=options.messages, pin_s=options.pin_seconds),
        "changes": partial(changes.run, messages=options.messages),
    }
    figures: list[Figure] = []
    sound: list[Figure] = []
    failures: list[str] = []
    shares: dict[str, float] = {}
    for name in options.only or ALL:
        noise, found = Noise(), []
        try:
            found = uvloop.run(benches[name](options.short))
        except (UnfitError, RuntimeError, OSError, TimeoutError) as error:
            failures.append(f"{name} failed: {error!r}")
            say(failures[-1])
        share = shares[name] = noise.share()
        figures += found
        sound += [] if share > DISTURBED else found
        warning = ": its figures are disturbed" if share > DISTURBED else ""
        say(f"{name}: other programs used {share:.0%} of the machine{warning}")
    show(figures)
    if options.json:
        save(figures, failures, shares, options.json)
    return judge(figures, sound, failures)


def judge(figures: list[Figure], sound: list[Figure], failures: list[str]) -> Verdict:
    """The verdict on the figures. `sound` are those that nothing disturbed: if none of them missed a goal and
    others did, or benchmarks failed, this raises NoVerdictError."""
    verdict = verdict_on(figures)
    if verdict_on(sound).ok:
        if not verdict.ok:
            failures = [*failures, "goals were missed while other programs used the machine: run it idle"]
        if failures:
            raise NoVerdictError("; ".join(failures))
    return verdict


if __name__ == "__main__":
    sys.exit(main())
