"""`gapless consume`: the messages of a durable subscription, printed or handed to a command."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.failures import say, usage
from app.cli.options import DEFAULT_URL, Url

if TYPE_CHECKING:
    from gapless import Outstanding, SyncConsumer, SyncDelivery

    from app.cli.interrupts import Interrupts
    from app.cli.queues.executing import Commands
    from app.cli.queues.tally import Tally

EXAMPLES = """
Examples:

  gapless consume billing                               print deliveries as JSON lines; each is acked
  gapless consume billing --data-only | jq .amount
  gapless consume billing --no-ack --count 3            only look at what is ready: nothing is leased
  gapless consume billing --exec ./charge               the message on its stdin; exit code 0 acks it
  gapless consume thumbs --exec 'convert - out.png' --data-only --concurrency 4

A command that fails gives its message back: it comes again as the subscription's backoff says, and is a dead
letter after the last attempt, with the last line of the command's stderr as its error. The lease is extended
while the command runs. GAPLESS_MESSAGE_ID, _CHANNEL, _TYPE, _KEY, GAPLESS_ATTEMPT and GAPLESS_SUBSCRIPTION
are set for it. Ctrl-C waits for commands under way, a second one ends them. What was handed to it beyond
--count comes again at once, and that was an attempt.
"""
MAX_PREFETCH = 1000
SIGNAL_S = 0.2
"""A signal that comes just before the main thread falls asleep does not wake it: it looks up so often."""


def consume(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The subscription.", show_default=False)],
    count: Annotated[int | None, typer.Option(min=1, help="Stop after so many deliveries.")] = None,
    prefetch: Annotated[
        int | None, typer.Option(min=1, max=MAX_PREFETCH, help="Unsettled at a time [10].")
    ] = None,
    ack: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Ack what was printed, or only look at what is ready.")
    ] = True,
    command: Annotated[str | None, typer.Option("--exec", metavar="CMD", help="Run this for each.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Commands at a time.")] = 1,
    data_only: Annotated[bool, typer.Option("--data-only", help="Only each message's data.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Take messages from a durable subscription, for as long as it runs, and settle them."""
    if command is None and concurrency != 1:
        raise usage("--concurrency is for --exec: lines are printed one after another")
    if command is not None and not ack:
        raise usage("--no-ack is for looking: a command's exit code settles its message")
    if not ack and prefetch is not None:
        raise usage("--no-ack is for looking: nothing is unsettled by it")
    from app.cli.connection import connected, require_server
    from app.cli.interrupts import Interrupts
    from app.cli.output import until_closed
    from app.cli.queues.tally import Tally
    from app.cli.subscribe import tell_log

    require_server(url)
    tally = Tally()
    tell_log()
    with until_closed(), connected(url) as client:
        if not ack:
            _look(client.look(name, "ready", page_size=min(count or 100, 1000)), count, data_only, tally)
            return
        consumer = client.consume(name, prefetch=prefetch or _prefetch(count, concurrency))
        with consumer:
            if command is None:
                _print(consumer, count, data_only, Interrupts(), tally)
            else:
                from app.cli.queues.executing import Commands

                Workers(consumer, Commands(command, data_only), count, tally).run(concurrency)
        tally.end()


def _look(ready: Iterator[Outstanding], count: int | None, data_only: bool, tally: Tally) -> None:
    """Print what is ready, and end."""
    from app.cli.output import data_json, write_line
    from app.cli.queues.shapes import outstanding_json

    for seen in islice(ready, count):
        write_line(data_json(seen.message.data) if data_only else outstanding_json(seen))
        tally.count("looked at")
    tally.end()


def _prefetch(count: int | None, concurrency: int) -> int:
    """No more than is wanted: what is read ahead and left behind counts as an attempt."""
    if count is None:
        return min(max(10, 2 * concurrency), MAX_PREFETCH)
    return min(concurrency, count)


def _print(
    consumer: SyncConsumer,
    count: int | None,
    data_only: bool,
    interrupts: Interrupts,
    tally: Tally,
) -> None:
    """Until `count`, Ctrl-C, SIGTERM or the end of whoever reads."""
    from app.cli.output import when_reader_leaves

    when_reader_leaves(consumer.stop)
    with suppress(KeyboardInterrupt):
        for delivery in consumer:
            # Printed and not acked would be printed again, acked and not printed would be lost.
            with interrupts:
                _print_and_ack(delivery, data_only)
                tally.count("lost" if delivery.lost else "acked")
            if tally.total == count:
                return


def _print_and_ack(delivery: SyncDelivery, data_only: bool) -> None:
    with delivery:
        try:
            _write(delivery, data_only)
        except BrokenPipeError:
            # Nobody saw it: that is no failure of the message, so it comes again at once.
            delivery.nack(delay=0)
            raise


def _write(delivery: SyncDelivery, data_only: bool) -> None:
    from app.cli.output import data_json, write_line
    from app.cli.queues.shapes import delivery_json

    if data_only:
        write_line(data_json(delivery.message.data))
    else:
        write_line(delivery_json(delivery.receipt, delivery.attempt, delivery.message))


class Workers:
    """Threads that take deliveries and run commands, until `count` of them are done."""

    def __init__(self, consumer: SyncConsumer, commands: Commands, count: int | None, tally: Tally) -> None:
        self._consumer = consumer
        self._commands = commands
        self._left = count
        self._tally = tally
        self._taking = threading.Lock()
        self._failures: list[Exception] = []
        self._changed = threading.Condition()
        self._asked = 0
        self._ended = 0

    def run(self, concurrency: int) -> None:
        """Until all is done, or Ctrl-C or SIGTERM: commands under way are waited for once, then ended."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._heard)
        try:
            for _ in range(concurrency):
                threading.Thread(target=self._work, daemon=True).start()
            with self._changed:
                while self._ended < concurrency:
                    self._changed.wait(SIGNAL_S)
        finally:
            self._commands.end(signal.SIGKILL)
        if self._failures:
            raise self._failures[0]

    def _heard(self, number: int, frame: FrameType | None) -> None:
        """Raises nothing: whatever the main thread is about goes on, and finds the consumer stopped."""
        self._asked += 1
        self._consumer.stop()
        if self._asked == 1:
            say("waiting for the commands under way; once more ends them")
        else:
            self._commands.end(signal.SIGTERM if self._asked == 2 else signal.SIGKILL)

    def _work(self) -> None:
        try:
            while (delivery := self._next()) is not None:
                self._do(delivery)
        except Exception as error:  # noqa: BLE001 (it is raised where the threads were started)
            self._failures.append(error)
            self._consumer.stop()
        finally:
            with self._changed:
                self._ended += 1
                self._changed.notify_all()

    def _next(self) -> SyncDelivery | None:
        """One at a time, so that no thread waits for a delivery too many."""
        with self._taking:
            if self._left == 0:
                return None
            delivery = next(self._consumer, None)
            if self._left is not None and delivery is not None:
                self._left -= 1
            return delivery

    def _do(self, delivery: SyncDelivery) -> None:
        from app.cli.queues.executing import CommandFailed, Ended

        try:
            with delivery:
                self._commands.run(delivery)
        except CommandFailed as failed:
            say(f"message {delivery.message.id}, attempt {delivery.attempt}: {failed}")
            self._tally.count("lost" if delivery.lost else "nacked")
        except Ended:
            self._tally.count("nacked")
        else:
            self._tally.count("lost" if delivery.lost else "acked")
