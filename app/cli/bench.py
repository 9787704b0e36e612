"""`gapless bench`: runs the benchmarks in their own process."""

from __future__ import annotations

import os
import subprocess

import typer
from gapless_cli.failures import Failure

from app import launch
from app.launch import CHECKOUT

EXAMPLES = """
Options, passed to python -m load.bench:

  --only NAME       publish, websocket, batch, changes, fanout, latency, memory, herd,
                    opening, presence, unread, queue or bloat; may be repeated
  --short           takes seconds, not minutes; less exact
  --json FILE       also write the figures to this file
  --messages N      for bloat and changes: how many messages, a multiple of 1000
  --pin-seconds S   for bloat: how long the snapshot is held

Examples:

  gapless bench
  gapless bench --only publish --short
  gapless bench --json figures.json

It starts its own servers. The machine must be idle otherwise. Exit code 1: a goal was missed; 2: no verdict,
because a measurement failed, or missed a goal while other programs used the machine.
"""


def bench(context: typer.Context) -> None:
    """Measure this service against its peers on this machine. Takes all options of load.bench."""
    if not (CHECKOUT / "load" / "bench").is_dir():
        raise Failure(f"the benchmarks are not here ({CHECKOUT / 'load'} is missing): use a whole checkout")
    # The Python processes that a benchmark starts need both.
    paths = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "client")])
    environment = {**os.environ, "PYTHONPATH": paths, "PYTHONSAFEPATH": "1"}
    command = [*launch.command("load.bench"), *context.args]
    process = subprocess.Popen(command, env=environment)
    while True:
        try:
            code = process.wait()
            break
        except KeyboardInterrupt:
            continue  # The child gets Ctrl-C too, and ends after its own children.
    raise typer.Exit(code if code >= 0 else 128 - code)
