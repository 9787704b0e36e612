"""`python -m load.soak`: runs all features at once, without faults, and gives the verdict.

It publishes as fast as all readers can follow, over REST and in SQL. Readers follow patterns over SSE,
consume two queues, and run Spark. Each message must come once and in order, and the watermark must never go
back.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from load import drill
from load.soak.soaking import Plan, soak

EXAMPLES = (
    "--minutes 60",
    "--minutes 0.2 --spark reader      the short form",
    "--minutes 600 --control           may fail: ids are read without the sequence's lock",
    "--minutes 1 --control 500         must fail: one in 500 readings is ahead",
)


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = drill.parser("soak", __doc__, *EXAMPLES)
    drill.add_minutes(parser, 2.0)
    parser.add_argument("--workers", type=int, default=2, help="of the service")
    parser.add_argument("--readers", type=int, default=2, help="streams for each of four selections")
    parser.add_argument("--members", type=int, default=2, help="of each of two queues")
    parser.add_argument("--publishers", type=int, default=2, help="over REST, and as many in SQL")
    parser.add_argument("--voids", type=int, default=1, help="sessions that take ids and roll back")
    parser.add_argument("--ahead", type=int, default=50_000, help="of publishers before readers, at most")
    spark = "Structured Streaming, or the reader behind it without a Java"
    parser.add_argument("--spark", choices=["query", "reader", "none"], default="query", help=spark)
    control = "read the last id without the sequence's lock; or let one in so many readings be ahead"
    parser.add_argument("--control", type=int, nargs="?", const=0, metavar="ONE_IN", help=control)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run once."""
    chosen = options(arguments)
    amounts = (chosen.workers, chosen.readers, chosen.members, chosen.publishers, chosen.voids, chosen.ahead)
    plan = Plan(60 * chosen.minutes, *amounts, spark=chosen.spark, control=chosen.control)
    return drill.conclude(drill.played(lambda: asyncio.run(soak(plan))))


if __name__ == "__main__":
    sys.exit(main())
