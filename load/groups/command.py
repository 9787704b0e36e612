"""Storms from the command line: one with what was chosen, or all the controls, each of which must fail."""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
import traceback
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from load.children import raise_file_limit
from load.groups import archive
from load.groups.sabotage import CONTROLS
from load.groups.storm import Storm
from load.groups.verdict import Verdict
from load.server import Server
from load.wire import Target

RESULTS = Path(__file__).resolve().parent.parent / "results"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What can be chosen about a storm. Times in seconds but for `--minutes`."""
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--workers", type=int, default=2, help="worker processes of the service")
    parser.add_argument("--rate", type=float, default=30.0, help="messages a second")
    parser.add_argument("--crash", type=float, default=0.03, help="crashes of members a delivery")
    parser.add_argument(
        "--torment", type=float, default=1.5, help="mean time between freezes and kills of members"
    )
    parser.add_argument(
        "--fault-every", type=float, default=15.0, help="mean time between faults of the service"
    )
    parser.add_argument("--patience", type=float, default=60.0, help="in this time everything must settle")
    parser.add_argument("--url", help="a running service to use, whose parts are left alone")
    parser.add_argument("--sabotage", choices=list(CONTROLS), help="a control: the storm must fail")
    parser.add_argument("--keep", action="store_true", help="keep the history of a good run too")


def storm(options: argparse.Namespace) -> int:
    """Run once and say how it went: 0 good, 1 something is broken, 2 no verdict."""
    verdict = _run(options)
    if verdict is None:
        return 2
    print(verdict.report())
    return verdict.exit_code


def controls(options: argparse.Namespace) -> int:
    """A short storm for each control. 0: every one was found out, and called by its name."""
    missed = []
    for name, (_, breach) in CONTROLS.items():
        options.sabotage = name
        verdict = _run(options)
        found = verdict is not None and verdict.counts[breach] > 0
        print(f"{name}: {verdict.line() if verdict else 'no verdict'}: {'found' if found else 'MISSED'}\n")
        missed += [] if found else [name]
    return 1 if missed else 0


def _run(options: argparse.Namespace) -> Verdict | None:
    """One storm; None: there can be no verdict."""
    raise_file_limit()
    home = Path(tempfile.mkdtemp(prefix="gapless-groups-"))
    server = None if options.url else Server(home, {"workers": str(options.workers)})
    one, verdict = Storm(options, home, _target(options, server), server), None
    try:
        verdict = uvloop.run(one.run())
    except Exception:  # noqa: BLE001
        # Whatever went wrong with the run itself says nothing about the service.
        print(f"no verdict: {traceback.format_exc()}")
    finally:
        if server is not None:
            server.stop()
    if verdict is None or options.keep or not (verdict.ok or options.sabotage):
        print(f"kept in {_keep(one, verdict)}")
    shutil.rmtree(home, ignore_errors=True)
    return verdict


def _target(options: argparse.Namespace, server: Server | None) -> Target:
    if server is not None:
        return server.target
    url = urlsplit(options.url)
    return Target(url.hostname or "127.0.0.1", url.port or 80)


def _keep(storm: Storm, verdict: Verdict | None) -> Path:
    """Keep the history, the verdict, the members' notes and the logs for whoever looks for the cause."""
    folder = RESULTS / f"groups-{time.strftime('%Y%m%d-%H%M%S')}-seed{storm.options.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    archive.write(storm.history, folder / "history.jsonl.gz")
    (folder / "verdict.txt").write_text(verdict.report() + "\n" if verdict else "no verdict\n")
    for log in storm.home.rglob("*.log"):
        shutil.copy(log, folder / log.name)
    if verdict is None and (storm.home / "notes").exists():
        shutil.copytree(storm.home / "notes", folder / "notes", dirs_exist_ok=True)
    return folder
