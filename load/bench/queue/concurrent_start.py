"""All children of a crew start at one moment. Standard library only: the peers run it too.

A child connects to its crew, says that it is ready, and works from the moment it is told to. What it says is
one JSON object a line.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

ADDRESS = "GAPLESS_BENCH_CREW"
"""The variable that names the crew's Unix socket."""


class ConcurrentStart:
    """One child's line to its crew. Raises OSError when the crew has gone."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.environ[ADDRESS])

    def wait(self) -> None:
        """Say that everything is connected and prepared, and block until all others are, too."""
        self.say({"ready": True})
        if self._socket.recv(3) != b"go\n":
            raise ConnectionError("the crew has gone")

    def wait_for_stop(self) -> None:
        """Block until the crew says that it is over."""
        self._socket.recv(16)

    def fileno(self) -> int:
        """For an event loop to watch."""
        return self._socket.fileno()

    def say(self, word: dict[str, Any]) -> None:
        """Tell the crew something."""
        self._socket.sendall(json.dumps(word).encode() + b"\n")
