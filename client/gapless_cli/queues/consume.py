"""`gapless consume`: prints the messages of a durable subscription, or runs a command for each."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from gapless_cli.failures import say, usage
from gapless_cli.limits import MAX_PAGE, MAX_PREFETCH
from gapless_cli.options import DEFAULT_URL, Url

if TYPE_CHECKING:
    from gapless import Consumer, Delivery, Outstanding, PulledDelivery, Stream
    from gapless_cli.interrupts import Interrupts
    from gapless_cli.queues.executing import Commands
    from gapless_cli.queues.tally import Tally

EXAMPLES = """
Examples:

  gapless consume billing                               print deliveries as JSON lines; each is acked
  gapless consume billing --data-only | jq .amount
  gapless consume billing --no-ack --count 3            only look at what is ready: nothing is leased
  gapless consume clicks --auto-ack                     settled before it is printed: at most once
  gapless consume billing --exec ./charge               runs it with the message on stdin; exit code 0 acks
  gapless consume thumbs --exec 'convert - out.png' --data-only --concurrency 4

If a command fails, its message comes again as the subscription's backoff says. After the last attempt it
becomes a dead letter, with the last line of the command's stderr as its error. The lease is extended while
the command runs. The command gets GAPLESS_MESSAGE_ID, _CHANNEL, _TYPE, _KEY, GAPLESS_ATTEMPT and
GAPLESS_SUBSCRIPTION. Ctrl-C waits for running commands, a second Ctrl-C ends them. A message whose
command was ended, that was not printed, or that was handed out beyond --count is released: it comes again at
once, and that counts as no attempt.
"""
SIGNAL_S = 0.2
"""A signal just before the main thread sleeps does not wake it, so it wakes at this interval."""


def consume(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The subscription.", show_default=False)],
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many deliveries.")] = None,
    prefetch: Annotated[
        int | None, typer.Option(min=1, max=MAX_PREFETCH, help="Unsettled at a time [10].")
    ] = None,
    ack: Annotated[
        bool, typer.Option("--ack/--no-ack", help="Ack printed messages, or only show ready ones.")
    ] = True,
    command: Annotated[str | None, typer.Option("--exec", metavar="CMD", help="Run this for each.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Commands at a time.")] = 1,
    auto_ack: Annotated[
        bool, typer.Option("--auto-ack", help="Settle each message when it is handed out: at most once.")
    ] = False,
    data_only: Annotated[bool, typer.Option("--data-only", help="Only each message's data.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Take messages from a durable subscription and settle them, until it is stopped."""
    if auto_ack and (command is not None or not ack):
        raise usage("--auto-ack is for printing: it settles each message before it is printed")
    if auto_ack and prefetch is not None:
        raise usage("--auto-ack takes one message at a time, so --prefetch has no effect")
    if command is None and concurrency != 1:
        raise usage("--concurrency is for --exec: lines are printed one after another")
    if command is not None and not ack:
        raise usage("--no-ack is for looking: a command's exit code settles its message")
    if not ack and prefetch is not None:
        raise usage("--no-ack is for looking: nothing is unsettled by it")
    from gapless_cli.connection import connected, require_server
    from gapless_cli.interrupts import Interrupts
    from gapless_cli.output import until_closed
    from gapless_cli.queues.tally import Tally
    from gapless_cli.subscribe import tell_log

    tally = Tally()
    tell_log()
    with until_closed(), connected(url) as client:
        require_server(url)
        if not ack:
            _look(
                client.subscriptions.look(name, "ready", page_size=min(count or 100, MAX_PAGE)),
                count,
                data_only,
                tally,
            )
            return
        if auto_ack:
            with client.consume(name, ack="auto") as stream:
                _print_settled(stream, count, data_only, Interrupts(), tally)
            tally.end()
            return
        consumer = client.consume(name, prefetch=prefetch or _prefetch(count, concurrency))
        with consumer:
            if command is None:
                _print(consumer, count, data_only, Interrupts(), tally)
            else:
                from gapless_cli.queues.executing import Commands

                Workers(consumer, Commands(command, data_only), count, tally).run(concurrency)
        tally.end()


def _look(ready: Iterator[Outstanding], count: int | None, data_only: bool, tally: Tally) -> None:
    """Print the messages that are ready, and end."""
    from gapless_cli.output import data_json, write_line
    from gapless_cli.queues.shapes import outstanding_json

    for seen in islice(ready, count):
        write_line(data_json(seen.message.data) if data_only else outstanding_json(seen))
        tally.count("looked at")
    tally.end()


def _prefetch(count: int | None, concurrency: int) -> int:
    """How many to read ahead: at most `count`, because others could work on what is read ahead and left."""
    if count is None:
        return min(max(10, 2 * concurrency), MAX_PREFETCH)
    return min(concurrency, count)


def _print(
    consumer: Consumer,
    count: int | None,
    data_only: bool,
    interrupts: Interrupts,
    tally: Tally,
) -> None:
    """Print until `count`, Ctrl-C, SIGTERM, or until the reader of stdout leaves."""
    from gapless_cli.output import when_reader_leaves

    when_reader_leaves(consumer.stop)
    with suppress(KeyboardInterrupt):
        for delivery in consumer:
            # A message printed but not acked would be printed again; the reverse would lose it.
            with interrupts:
                _print_and_ack(delivery, data_only)
                tally.count("lost" if delivery.lost else "acked")
            if tally.total == count:
                return


def _print_settled(
    stream: Stream[PulledDelivery], count: int | None, data_only: bool, interrupts: Interrupts, tally: Tally
) -> None:
    """The same for messages that were settled when they were handed out."""
    from gapless_cli.output import when_reader_leaves

    when_reader_leaves(stream.close)
    with suppress(KeyboardInterrupt):
        for delivery in stream:
            with interrupts:
                _write(delivery, data_only)
                tally.count("acked")
            if tally.total == count:
                return


def _print_and_ack(delivery: Delivery, data_only: bool) -> None:
    with delivery:
        try:
            _write(delivery, data_only)
        except BrokenPipeError:
            # It was not printed. That is not the message's fault.
            delivery.release()
            raise


def _write(delivery: Delivery | PulledDelivery, data_only: bool) -> None:
    from gapless_cli.output import data_json, write_line
    from gapless_cli.queues.shapes import delivery_json

    if data_only:
        write_line(data_json(delivery.message.data))
    else:
        write_line(delivery_json(delivery.receipt, delivery.attempt, delivery.message))


class Workers:
    """Threads that take deliveries and run commands, until `count` of them are done."""

    def __init__(self, consumer: Consumer, commands: Commands, count: int | None, tally: Tally) -> None:
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
        """Runs until all is done. Ctrl-C or SIGTERM waits for running commands; a second one ends them."""
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
        """Handles a signal and raises nothing: the main thread goes on and finds the consumer stopped."""
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

    def _next(self) -> Delivery | None:
        """The next delivery. One thread at a time takes one, so that none waits for a delivery too many."""
        with self._taking:
            if self._left == 0:
                return None
            delivery = next(self._consumer, None)
            if self._left is not None and delivery is not None:
                self._left -= 1
            return delivery

    def _do(self, delivery: Delivery) -> None:
        from gapless_cli.queues.executing import CommandFailed, Ended

        try:
            with delivery:
                self._commands.run(delivery)
        except CommandFailed as failed:
            say(f"message {delivery.message.id}, attempt {delivery.attempt}: {failed}")
            self._tally.count("lost" if delivery.lost else "nacked")
        except Ended:
            self._tally.count("released")
        else:
            self._tally.count("lost" if delivery.lost else "acked")
