"""How commands fail: with one readable line on stderr and an exit code, never a traceback."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

from gapless_cli.terminal import printable_lines

if TYPE_CHECKING:
    from gapless import GaplessError

TRACEBACK = "GAPLESS_TRACEBACK"


class Exit(IntEnum):
    """Exit codes of every command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


class Failure(Exception):  # noqa: N818 (it is the outcome of a command, not a programming error)
    """Ends the command with this line and this exit code."""

    def __init__(self, text: str, code: Exit = Exit.FAILED) -> None:
        super().__init__(text)
        self.code = code


def usage(text: str) -> Failure:
    """A failure for wrong usage of a command."""
    return Failure(text, Exit.USAGE)


def say(text: str) -> None:
    """Writes one or more lines to stderr. If the reader of stderr has gone, that is not an error."""
    with suppress(OSError):
        print(f"gapless: {printable_lines(text)}", file=sys.stderr, flush=True)


def failure_from(error: GaplessError, url: str) -> Failure:
    """The failure to show for an error of the service or of the connection."""
    from gapless import ServerError, Unreachable

    if isinstance(error, Unreachable):
        text = f"no server answers at {url} ({error.detail}): start one with gapless serve, or give --url"
        return Failure(text + _repeat(error), Exit.UNREACHABLE)
    return Failure(str(error) + (_repeat(error) if isinstance(error, ServerError) else ""))


def _repeat(error: GaplessError) -> str:
    """Advice after a publish without an answer: it may be stored, and only its key makes a retry safe."""
    never_sent = type(error.__cause__).__name__ in ("ConnectError", "ConnectTimeout")
    if error.idempotency_key is None or never_sent:
        return ""
    return f"; to publish it once for certain, repeat it with --idempotency-key {error.idempotency_key}"


def end(error: Exception) -> NoReturn:
    """End the process after an error. A `Failure` has its own line and exit code; others get one line too."""
    if isinstance(error, Failure):
        say(str(error))
        sys.exit(int(error.code))
    if os.environ.get(TRACEBACK):
        raise error
    say(f"unexpected {type(error).__name__}: {error} (set {TRACEBACK}=1 to see where)")
    sys.exit(int(Exit.FAILED))
