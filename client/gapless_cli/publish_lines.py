"""`gapless publish --lines`: sends the lines that are there as one batch and does not wait for more."""

from __future__ import annotations

import queue
import sys
import threading
from typing import TYPE_CHECKING, Any

from gapless_cli.connection import connected
from gapless_cli.failures import Failure, usage
from gapless_cli.limits import MAX_MESSAGES
from gapless_cli.new_message import Settings, parse
from gapless_cli.output import published_json, until_closed, write_line

if TYPE_CHECKING:
    from gapless import Client, NewMessage

MAX_BYTES = 2 * 1024 * 1024
"""Limit of the lines of one batch: the service accepts 8 MiB, and escaping can multiply a text's length."""
MAX_LINE_BYTES = 2 * 1024 * 1024
MAX_WAITING = 128
"""Limit of the lines read ahead. It bounds memory when they are long."""

Line = tuple[int, bytes]


def publish_lines(url: str, channel: str, settings: Settings, text: bool) -> None:
    """Publish each line of stdin in order, and print each answer. A bad line ends it after earlier lines."""
    if sys.stdin is None:
        raise usage("--lines reads standard input, which is closed")
    lines: queue.Queue[Line | None] = queue.Queue(MAX_WAITING)
    failed: list[OSError] = []
    threading.Thread(target=_read, args=(lines, failed), daemon=True).start()
    ended = False
    held: Line | None = None
    with until_closed(), connected(url) as client:
        while not ended:
            batch, held, ended = _gather(lines, held)
            _send(client, channel, batch, settings, text)
    if failed:
        raise usage(f"stdin cannot be read: {failed[0].strerror}")


def _read(lines: queue.Queue[Line | None], failed: list[OSError]) -> None:
    """Read until the end, a line that is too long, or an error."""
    try:
        # Not `sys.stdin`: the interpreter aborts at its end when a thread still holds the lock of that.
        with open(0, "rb", closefd=False) as stdin:
            number = 0
            while line := stdin.readline(MAX_LINE_BYTES + 1):
                number += 1
                lines.put((number, line))
                if len(line) > MAX_LINE_BYTES:
                    break
    except OSError as error:
        failed.append(error)
    lines.put(None)


def _gather(lines: queue.Queue[Line | None], held: Line | None) -> tuple[list[Line], Line | None, bool]:
    """Wait for one line, then take the others that are there. Returns the batch, a line that did not fit into
    it, and whether stdin ended."""
    batch: list[Line] = []
    size = 0
    line = held
    while len(batch) < MAX_MESSAGES:
        if line is None:
            try:
                line = lines.get(block=not batch)
            except queue.Empty:
                break
            if line is None:
                return batch, None, True
        if batch and size + len(line[1]) > MAX_BYTES:
            return batch, line, False
        batch.append(line)
        size += len(line[1])
        line = None
    return batch, None, False


def _send(client: Client, channel: str, batch: list[Line], settings: Settings, text: bool) -> None:
    messages: list[NewMessage] = []
    bad: Failure | None = None
    for number, line in batch:
        try:
            payload = _payload(number, line, text)
        except Failure as failure:
            bad = failure
            break
        if payload is not None or line.strip():
            messages.append(_message(payload, settings))
    _publish(client, channel, messages, settings)
    if bad is not None:
        raise bad


def _payload(number: int, line: bytes, text: bool) -> Any:
    where = f"line {number} of stdin"
    if len(line) > MAX_LINE_BYTES:
        raise usage(f"{where} is longer than {MAX_LINE_BYTES} bytes")
    try:
        read = line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise usage(f"{where} is not UTF-8") from None
    if text:
        return read
    return parse(read, where, "; --text publishes lines as they are") if read.strip() else None


def _message(payload: Any, settings: Settings) -> NewMessage:
    from gapless import NewMessage

    return NewMessage(payload, ttl=settings.ttl, **settings.options)


def _publish(client: Client, channel: str, messages: list[NewMessage], settings: Settings) -> None:
    if settings.ephemeral:
        for one in messages:
            client.publish(channel, one.data, ephemeral=True, **settings.options)
            write_line({"channel": channel, "ephemeral": True})
    elif messages:
        for published in client.publish_many(channel, messages):
            write_line(published_json(published), flush=False)
        sys.stdout.flush()
