"""`python -m load.groups storm|controls|check`: tests durable subscriptions under load and faults."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command. Its modules are imported here, because every member's process imports this file."""
    from load import drill
    from load.groups import archive, command
    from load.groups.checker import check
    from load.waiting import PATIENCE_S

    parser = drill.parser("groups", __doc__, "storm", "storm --minutes 0.5 --fault-every 8", "controls")
    commands = parser.add_subparsers(dest="command", required=True)
    command.add_options(commands.add_parser("storm", help="run, while everything is killed in turn"))
    controls = commands.add_parser("controls", help="storms with a planted mistake; each must fail")
    command.add_options(controls, minutes=0.3)
    controls.set_defaults(fault_every=1000.0, patience=PATIENCE_S / 4)
    kept = commands.add_parser("check", help="judge a kept history again")
    kept.add_argument("history", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "check":
        return drill.conclude(drill.played(lambda: check(archive.read(options.history))))
    play = command.storm if options.command == "storm" else command.controls
    return drill.conclude(play(options))


if __name__ == "__main__":
    sys.exit(main())
