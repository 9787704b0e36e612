"""`gapless bench`: the benchmarks against peers, in a process of their own."""

from __future__ import annotations

import os
import subprocess

import typer

from app import program
from app.cli.failures import Failure
from app.program import CHECKOUT

EXAMPLES = """
Options, handed on to python -m load.bench:

  --only NAME       publish, batch, fanout, latency, memory, herd, queue or bloat; may be repeated
  --short           seconds in place of minutes; less steady
  --json FILE       write the figures here too
  --messages N      of bloat: how many, a multiple of 1000
  --pin-seconds S   of bloat: how long the snapshot is held

Examples:

  gapless bench
  gapless bench --only publish --short
  gapless bench --json figures.json

It starts servers of its own and wants the machine for itself. Exit code 1: a goal was missed or a
measurement failed.
"""


def bench(context: typer.Context) -> None:
    """Measure this service against its peers on this machine. Takes all options of load.bench."""
    if not (CHECKOUT / "load" / "bench").is_dir():
        raise Failure(f"the benchmarks are not here ({CHECKOUT / 'load'} is missing): use a whole checkout")
    # For what it starts itself, as other users of the client do.
    paths = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "client")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
    command = [*program.command("load.bench"), *context.args]
    process = subprocess.Popen(command, env=environment)
    while True:
        try:
            code = process.wait()
            break
        except KeyboardInterrupt:
            continue  # The child heard Ctrl-C too; what it started has to end before its parent does.
    raise typer.Exit(code if code >= 0 else 128 - code)
