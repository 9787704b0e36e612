"""`python -m load.groups storm|controls|check`: durable subscriptions under fire, and the verdict."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main() -> int:
    """Parse and go. What a command needs is loaded here: every member's process begins with this file."""
    from load.groups import archive, command
    from load.groups.checker import check

    parser = argparse.ArgumentParser(prog="python -m load.groups", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command.add_options(commands.add_parser("storm", help="run, while everything is killed in turn"))
    controls = commands.add_parser("controls", help="storms with a planted mistake; each must fail")
    command.add_options(controls)
    controls.set_defaults(minutes=0.3, fault_every=1000.0, patience=15.0)
    kept = commands.add_parser("check", help="judge a kept history again")
    kept.add_argument("history", type=Path)
    options = parser.parse_args()
    if options.command == "check":
        verdict = check(archive.read(options.history))
        print(verdict.report())
        return verdict.exit_code
    return command.storm(options) if options.command == "storm" else command.controls(options)


if __name__ == "__main__":
    sys.exit(main())
