"""A history of subscriptions as a file: JSON lines, gzipped, one fact a line."""

from __future__ import annotations

import gzip
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

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
    """Keep a history. The folder is made when it is not there."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb", compresslevel=3) as out:

        def put(kind: str, fact: dict[str, Any]) -> None:
            out.write(orjson.dumps({"e": kind, **fact}, option=orjson.OPT_APPEND_NEWLINE))

        made = {"copies": history.copies, "products": history.products}
        put("run", {"seed": history.seed, "stuck": history.stuck, **made})
        for group in history.groups.values():
            put("group", asdict(group))
        for session in history.sessions.values():
            put("session", asdict(session))
        for kind, (name, _) in _LISTS.items():
            for fact in getattr(history, name):
                put(kind, asdict(fact))


def read(path: str | Path) -> Groups:
    """A kept history, equal to the one that was written."""
    history = Groups()
    with gzip.open(path, "rb") as lines:
        for line in lines:
            fact = orjson.loads(line)
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
