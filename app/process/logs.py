"""The log: a JSON object a line, which stays readable when the same warnings come several times a second."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

EVERY_S = 10.0
MAX_KINDS = 1000


class Repeats(logging.Filter):
    """Lets one warning of a kind through in `EVERY_S`. Its `left_out` counts those since the one before.

    A kind is a logger and a text before its values are filled in. Errors all come through.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()
        """When a kind was let through, and how many were left out since."""

    def filter(self, said: logging.LogRecord) -> bool:
        """Whether this is logged."""
        if said.levelno != logging.WARNING:
            return True
        kind, now = (said.name, str(said.msg)), self._clock()
        passed_at, left_out = self._kinds.pop(kind, (-EVERY_S, 0))
        if now - passed_at < EVERY_S:
            self._kinds[kind] = (passed_at, left_out + 1)
            return False
        if left_out:
            said.left_out = left_out
        self._kinds[kind] = (now, 0)
        if len(self._kinds) > MAX_KINDS:
            self._kinds.popitem(last=False)
        return True


def configure_logging(level: str) -> None:
    """Logs one JSON object per line to standard error, for the service and for uvicorn."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter(
            "{asctime}{levelname}{name}{message}",
            style="{",
            rename_fields={"asctime": "time", "levelname": "level", "name": "logger"},
            static_fields={"pid": os.getpid()},
            reserved_attrs=[*RESERVED_ATTRS, "color_message"],
        )
    )
    handler.addFilter(Repeats())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    # A line for each request, and one for each WebSocket that is closed.
    for name in ("uvicorn.access", "websockets.server"):
        logging.getLogger(name).setLevel(logging.WARNING)
