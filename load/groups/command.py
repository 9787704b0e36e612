"""Storms from the command line: one with the given options, or all controls, each of which must fail."""

from __future__ import annotations

import argparse
import shutil
from urllib.parse import urlsplit

import uvloop

from load import drill
from load.drill import say
from load.groups import archive
from load.groups.sabotage import CONTROLS
from load.groups.storm import Storm
from load.server import Server
from load.verdict import Breach, Verdict
from load.waiting import PATIENCE_S
from load.wire import Target


def add_options(parser: argparse.ArgumentParser, minutes: float = 5.0) -> None:
    """Add the options of a storm. Times are in seconds, except `--minutes`."""
    drill.add_minutes(parser, minutes)
    drill.add_seed(parser)
    drill.add_keep(parser)
    parser.add_argument("--workers", type=int, default=2, help="worker processes of the service")
    parser.add_argument("--rate", type=float, default=30.0, help="messages a second")
    parser.add_argument("--crash", type=float, default=0.03, help="crashes of members a delivery")
    parser.add_argument(
        "--torment", type=float, default=1.5, help="mean time between freezes and kills of members"
    )
    parser.add_argument(
        "--fault-every", type=float, default=15.0, help="mean time between faults of the service"
    )
    parser.add_argument("--patience", type=float, default=PATIENCE_S, help="until everything is settled")
    parser.add_argument("--url", help="a running service to use, whose parts are left alone")
    parser.add_argument("--sabotage", choices=list(CONTROLS), help="a control: the storm must fail")


def controls(options: argparse.Namespace) -> Verdict | None:
    """Run a short storm for each control, whose breach must be reported."""
    total = Verdict((Breach.MISSED,))
    for name, (_, breach) in CONTROLS.items():
        options.sabotage = name
        verdict = storm(options)
        if verdict is None:
            return None
        say(f"{name}: {verdict.line()}\n")
        total.add(Breach.MISSED, f"{name}: {breach} was not reported", count=verdict.counts[breach] == 0)
    return total


def storm(options: argparse.Namespace) -> Verdict | None:
    """Run one storm. None: there is no verdict."""
    home = drill.home("groups")
    server = None if options.url else Server(home, {"workers": str(options.workers)})
    one = Storm(options, home, _target(options, server), server)
    verdict = drill.played(lambda: uvloop.run(one.run()))
    if server is not None:
        server.stop()
    archive.write(one.history, home / "history.jsonl.gz")
    if options.sabotage and verdict is not None and not options.keep:
        shutil.rmtree(home, ignore_errors=True)
    else:
        drill.leave(home, f"groups-seed{options.seed}", verdict, keep=options.keep)
    return verdict


def _target(options: argparse.Namespace, server: Server | None) -> Target:
    if server is not None:
        return server.target
    url = urlsplit(options.url)
    return Target(url.hostname or "127.0.0.1", url.port or 80)
