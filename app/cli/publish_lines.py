"""`gapless publish --lines`: what is there goes out together, and nothing waits for more to come."""

from __future__ import annotations

import queue
import sys
import threading
from typing import TYPE_CHECKING, Any, BinaryIO

from app.cli.connection import connected
from app.cli.failures import Failure, usage
from app.cli.output import published_json, until_closed, write_line
from app.cli.publish import Settings, parse

if TYPE_CHECKING:
    from gapless import Client, NewMessage

MAX_MESSAGES = 1000
MAX_BYTES = 2 * 1024 * 1024
"""Of the lines of one batch: the service takes 8 MiB, and escaping can make text several times longer."""
MAX_LINE_BYTES = 2 * 1024 * 1024
MAX_WAITING = 128
"""Lines read ahead: what keeps memory bounded when they are long."""

Line = tuple[int, bytes]


def publish_lines(url: str, channel: str, settings: Settings, text: bool) -> None:
    """Publish each line of stdin in order, and print each answer. A bad line ends it after those before."""
    lines: queue.Queue[Line | None] = queue.Queue(MAX_WAITING)
    threading.Thread(target=_read, args=(sys.stdin.buffer, lines), daemon=True).start()
    ended = False
    held: Line | None = None
    with until_closed(), connected(url) as client:
        while not ended:
            batch, held, ended = _gather(lines, held)
            _send(client, channel, batch, settings, text)


def _read(stdin: BinaryIO, lines: queue.Queue[Line | None]) -> None:
    number = 0
    while line := stdin.readline(MAX_LINE_BYTES + 1):
        number += 1
        lines.put((number, line))
        if len(line) > MAX_LINE_BYTES:
            break
    lines.put(None)


def _gather(lines: queue.Queue[Line | None], held: Line | None) -> tuple[list[Line], Line | None, bool]:
    """Wait for one line, then take what else is there: the batch, a line too many for it, and the end."""
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

    return NewMessage(payload, settings.type, settings.key, settings.headers, settings.ttl)


def _publish(client: Client, channel: str, messages: list[NewMessage], settings: Settings) -> None:
    if settings.ephemeral:
        for one in messages:
            client.publish(channel, one.data, ephemeral=True, type=one.type, key=one.key, headers=one.headers)
            write_line({"channel": channel, "ephemeral": True})
    elif messages:
        for published in client.publish_many(channel, messages):
            write_line(published_json(published), flush=False)
        sys.stdout.flush()
