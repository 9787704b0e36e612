"""Runs a command for each message, with the message on its stdin. The exit code settles the message."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, TYPE_CHECKING

import msgspec

from gapless_cli.output import data_json, message_json

if TYPE_CHECKING:
    from gapless import Delivery, Message

MAX_LINE_BYTES = 64 * 1024
"""The most of a command's stderr that is passed on in one piece."""
MAX_SAID_CHARACTERS = 500
DRAIN_SECONDS = 1.0
"""The longest wait for the stderr of a command that has ended but left it open in a child process."""


class CommandFailed(Exception):  # noqa: N818 (it is the outcome of a message and the text of its dead letter)
    """The command failed for the message."""


class Ended(BaseException):
    """The command was ended because this process ends. Its message comes again at once."""


class Commands:
    """Runs `command` in a shell in its own session, so that signals to this process do not reach it."""

    def __init__(self, command: str, data_only: bool) -> None:
        self._command = command
        self._data_only = data_only
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended: signal.Signals | None = None

    def run(self, delivery: Delivery) -> None:
        """Returns once it exited with 0. Raises `CommandFailed` with its last line of stderr, or `Ended`."""
        process = subprocess.Popen(
            ["/bin/sh", "-c", self._command],
            env={**os.environ, **_environment(delivery)},
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._running.add(process)
        try:
            said = self._wait(process, delivery.message)
        finally:
            self._running.discard(process)
        if process.returncode != 0:
            raise Ended if self._ended is not None else CommandFailed(_told(process.returncode, said))

    def end(self, number: signal.Signals) -> None:
        """Ends all running commands with their child processes, and those that are just being started."""
        self._ended = number
        for process in list(self._running):
            _signal(process, number)

    def _wait(self, process: subprocess.Popen[bytes], message: Message) -> str:
        assert process.stdin is not None
        assert process.stderr is not None
        last: list[str] = []
        feeding = threading.Thread(target=_feed, args=(process.stdin, self._body(message)), daemon=True)
        passing = threading.Thread(target=_pass_on, args=(process.stderr, last), daemon=True)
        for thread in (feeding, passing):
            thread.start()
        if self._ended is not None:
            _signal(process, self._ended)
        process.wait()
        for thread in (feeding, passing):
            thread.join(DRAIN_SECONDS)
        return last[-1] if last else ""

    def _body(self, message: Message) -> bytes:
        if self._data_only and isinstance(message.data, bytes):
            return message.data
        return (
            msgspec.json.encode(data_json(message.data) if self._data_only else message_json(message)) + b"\n"
        )


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    # Only while it is not reaped: after that, another process may have its number.
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _environment(delivery: Delivery) -> dict[str, str]:
    message = delivery.message
    return {
        "GAPLESS_SUBSCRIPTION": delivery.subscription,
        "GAPLESS_ATTEMPT": str(delivery.attempt),
        "GAPLESS_MESSAGE_ID": str(message.id),
        "GAPLESS_MESSAGE_CHANNEL": message.channel,
        "GAPLESS_MESSAGE_TYPE": message.type,
        "GAPLESS_MESSAGE_KEY": message.key or "",
    }


def _feed(stdin: IO[bytes], body: bytes) -> None:
    # A command does not have to read its stdin.
    with suppress(BrokenPipeError), stdin:
        stdin.write(body)


def _pass_on(stderr: IO[bytes], last: list[str]) -> None:
    """Copies its stderr to ours line by line, and keeps the last line that is not empty."""
    with stderr:
        while line := stderr.readline(MAX_LINE_BYTES):
            with suppress(OSError):
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
            if line.strip():
                last[:] = [line.decode(errors="replace").strip()[:MAX_SAID_CHARACTERS]]


def _told(code: int, said: str) -> str:
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return f"{how}: {said}" if said else how
