"""A history of subscriptions as a file: JSON lines, gzipped, one fact a line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from load.archive import read_lines, write_lines
from load.groups.history import (
    DeadLetter,
    Delivery,
    Fault,
    Group,
    Groups,
    Message,
    Pause,
    Publish,
    Reading,
    Request,
    Session,
)
from load.history import Outcome

_LISTS: dict[str, tuple[str, type[Any]]] = {
    "publish": ("publishes", Publish),
    "message": ("messages", Message),
    "delivery": ("deliveries", Delivery),
    "request": ("requests", Request),
    "dead_letter": ("dead_letters", DeadLetter),
    "pause": ("pauses", Pause),
    "fault": ("faults", Fault),
    "reading": ("readings", Reading),
}


def write(history: Groups, path: str | Path) -> None:
    """Write a history. The folder is made if it is missing."""
    write_lines(path, _facts(history))


def _facts(history: Groups) -> Iterator[dict[str, Any]]:
    made = {"copies": history.copies, "products": history.products}
    yield {"e": "run", "seed": history.seed, "stuck": history.stuck, **made}
    for group in history.groups.values():
        yield {"e": "group", **asdict(group)}
    for session in history.sessions.values():
        yield {"e": "session", **asdict(session)}
    for kind, (name, _) in _LISTS.items():
        for fact in getattr(history, name):
            yield {"e": kind, **asdict(fact)}


def read(path: str | Path) -> Groups:
    """Read a history, equal to the one that was written."""
    history = Groups()
    for fact in read_lines(path):
        _apply(history, fact.pop("e"), fact)
    return history


def _apply(history: Groups, kind: str, fact: dict[str, Any]) -> None:
    if kind == "run":
        history.seed, history.stuck, history.copies = fact["seed"], fact["stuck"], fact["copies"]
        history.products = [(group, message_id) for group, message_id in fact["products"]]
    elif kind == "group":
        history.groups[fact["name"]] = Group(**{**fact, "channels": tuple(fact["channels"])})
    elif kind == "session":
        history.sessions[fact["number"]] = Session(**fact)
    else:
        name, made = _LISTS[kind]
        if "outcome" in fact:
            fact["outcome"] = Outcome(fact["outcome"])
        getattr(history, name).append(made(**fact))
