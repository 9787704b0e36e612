"""The notes of each process of a run, a line of JSON for each event, and how they become a history.

A line is in the file before the process continues, so a killed process loses at most a line that it had not
begun to write. Nothing is written twice. `read` combines the files of all processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from load.groups.history import Delivery, Groups, Pause, Request, Session
from load.history import Outcome

SESSIONS_A_PROCESS = 1_000_000
"""Sessions are numbered within their process. Each process has this many numbers."""


class Notes:
    """The file of one process. `write` returns when the kernel has the data."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, *events: dict[str, Any]) -> None:
        """Append events with one write."""
        os.write(self._file, b"".join(msgspec.json.encode(event) + b"\n" for event in events))


def moment(text: str) -> int:
    """A time of the service as monotonic nanoseconds of this machine."""
    wall_us = round(datetime.fromisoformat(text).timestamp() * 1e6)
    return wall_us * 1000 + time.monotonic_ns() - time.time_ns()


def read(folder: Path, history: Groups, killed: dict[int, int]) -> None:
    """Add the members' notes to a history. `killed`: by process number, when the run killed it."""
    for path in sorted(folder.glob("member-*.jsonl")):
        number = int(path.stem.split("-")[1])
        _Life(history, number, killed.get(number)).take(path)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines. A killed process may have left an incomplete one."""
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield msgspec.json.decode(line)


class _Life:
    """One process, from its start to its end."""

    def __init__(self, history: Groups, number: int, killed_ns: int | None) -> None:
        self._history, self._base, self._killed_ns = history, number * SESSIONS_A_PROCESS, killed_ns
        self._open: dict[int, Session] = {}
        self._asked: dict[int, list[Request]] = {}

    def take(self, path: Path) -> None:
        """Read the file. Sessions that are open at its end ended with the process."""
        for event in _lines(path):
            kind = event["e"]
            if kind == "session":
                number = self._base + event["s"]
                session = Session(number, event["g"], event["m"], event["stream"], event["limit"], event["t"])
                self._history.sessions[number] = self._open[number] = session
            elif kind == "told":
                self._history.sessions[self._base + event["s"]].told = True
            elif kind == "end":
                self._open.pop(self._base + event["s"]).ended_ns = event["t"]
            elif kind == "killed":
                self._killed_ns = min(event["t"], self._killed_ns or event["t"])
            elif kind == "pause":
                self._history.pauses.append(Pause(event["m"], event["from"], event["to"]))
            else:
                self._exchange(kind, event)
        for session in self._open.values():
            if self._killed_ns is not None:
                session.ended_ns, session.killed = max(session.began_ns, self._killed_ns), True

    def _exchange(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "dlv":
            session = self._history.sessions[self._base + event["s"]]
            place = event["id"], event["ch"], event["seq"], event["key"]
            lease = event["a"], event["r"], event["d"], event["t"]
            self._history.deliveries.append(Delivery(session.group, session.number, *place, *lease))
        elif kind == "ask":
            requests = [Request(event["k"], event["g"], receipt, event["t"], dead_letter=event["dead"])
                        for receipt in event["r"]]  # fmt: skip
            self._asked[event["n"]] = requests
            self._history.requests += requests
        elif kind == "said":
            for request, result in zip(self._asked.pop(event["n"]), event["results"], strict=True):
                request.answered_ns, request.outcome = event["t"], Outcome.OK
                request.status, request.entry = result["status"], result.get("dead_letter")
                request.deadline_ns = result.get("deadline_ns")
        elif kind == "refused":
            for request in self._asked.pop(event["n"]):
                request.answered_ns, request.outcome = event["t"], Outcome.FAIL
        else:
            raise ValueError(f"an event of an unknown kind: {event}")
