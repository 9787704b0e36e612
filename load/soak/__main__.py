"""`python -m load.soak`: everything at once, without a fault, and the verdict."""

from __future__ import annotations

import argparse
import asyncio
import sys
import traceback
from collections.abc import Sequence
from functools import partial

from load.soak.run import Plan, soak

EXAMPLES = """
examples:
  python -m load.soak --hours 1
  python -m load.soak                                   two minutes
  python -m load.soak --minutes 0.2 --spark reader      the short form
  python -m load.soak --hours 10 --control              may fail: ids are read without the sequence's lock
  python -m load.soak --minutes 1 --control 500         must fail: one in 500 readings is ahead

exit codes: 0 nothing was lost, doubled or out of order, and the watermark never went back;
1 not so; 2 no verdict
"""


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """What can be chosen."""
    parser = argparse.ArgumentParser(
        prog="python -m load.soak",
        description="Publish as fast as all readers can follow, over REST and in SQL; read patterns over SSE,"
        " work off two queues, and run Spark beside them. Each message must come once, and in order.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hours", type=float, default=0.0)
    parser.add_argument("--minutes", type=float, default=0.0, help="two, if no time is given")
    parser.add_argument("--workers", type=int, default=2, help="of the service")
    parser.add_argument("--readers", type=int, default=2, help="streams for each of four selections")
    parser.add_argument("--members", type=int, default=2, help="of each of two queues")
    parser.add_argument("--publishers", type=int, default=2, help="over REST, and as many in SQL")
    parser.add_argument("--voids", type=int, default=1, help="sessions that take ids and roll back")
    parser.add_argument("--ahead", type=int, default=50_000, help="publishers wait for who is so far behind")
    spark = "Structured Streaming, or the reader behind it without a Java"
    parser.add_argument("--spark", choices=["query", "reader", "none"], default="query", help=spark)
    control = "read the last id without the sequence's lock; or let one in so many readings be ahead"
    parser.add_argument("--control", type=int, nargs="?", const=0, metavar="ONE_IN", help=control)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: clean; 1: broken; 2: no verdict."""
    chosen = options(arguments)
    seconds = 60 * (60 * chosen.hours + chosen.minutes) or 120.0
    amounts = (chosen.workers, chosen.readers, chosen.members, chosen.publishers, chosen.voids, chosen.ahead)
    plan = Plan(seconds, *amounts, spark=chosen.spark, control=chosen.control)
    try:
        outcome = asyncio.run(soak(plan, partial(print, flush=True)))
    except (RuntimeError, OSError):
        traceback.print_exc()
        return 2
    print(outcome.report())
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    sys.exit(main())
