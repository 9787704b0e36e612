"""Stores a history as a file of gzipped JSON lines: one event on a line, or many deliveries."""

from __future__ import annotations

import gzip
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from load.history import Change, Cursor, Fault, Gap, History, Odd, Outcome, Shown, State

PER_LINE = 2000
"""The most deliveries, messages or attempts on one line."""


def write(history: History, path: str | Path) -> None:
    """Write a history. The folder is made if it is missing."""
    write_lines(path, _events(history))


def read(path: str | Path) -> History:
    """Read a history, equal to the one that was written."""
    history = History()
    for event in read_lines(path):
        _apply(history, event)
    return history


def write_lines(path: str | Path, facts: Iterable[dict[str, Any]]) -> None:
    """Write gzipped JSON lines."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb", compresslevel=3) as out:
        for fact in facts:
            out.write(msgspec.json.encode(fact) + b"\n")


def read_lines(path: str | Path) -> Iterator[dict[str, Any]]:
    """Read the lines of `write_lines`."""
    with gzip.open(path, "rb") as lines:
        yield from map(msgspec.json.decode, lines)


def _events(history: History) -> Iterator[dict[str, Any]]:
    log, attempts = history.log, history.attempts
    yield {"e": "run", "seed": history.seed, "in_order": history.in_order, "channels": log.names}
    for part in _parts(list(log.row)):
        rows = [log.row[message_id] for message_id in part]
        yield {"e": "message", "id": part, "ch": [log.channel[r] for r in rows],
               "seq": [log.seq[r] for r in rows], "hash": [log.digest[r] for r in rows],
               "data": [log.data.get(message_id, 0) for message_id in part]}  # fmt: skip
    for part in _parts(list(log.changes)):
        yield {"e": "change", "id": part, "change": [log.changes[message_id] for message_id in part]}
    yield {"e": "expected", "of": list(history.expected.items())}
    for part in _parts(list(range(len(attempts)))):
        states = [Outcome(attempts.outcome[a]).name.lower() for a in part]
        keys = {str(a): attempts.key[a] for a in part if a in attempts.key}
        yield {"e": "pub", "ch": [attempts.channel[a] for a in part], "outcome": states, "keys": keys,
               "hash": [attempts.digest[a] for a in part], "id": [attempts.id[a] for a in part]}  # fmt: skip
    for fault in history.faults:
        yield {"e": "fault", **asdict(fault)}
    for number, cursor in enumerate([history.told, *history.cursors], -1):
        yield from _cursor_events(number, cursor)
    for part in _parts(list(history.states)):
        yield {"e": "state", "id": part, "state": [history.states[message_id] for message_id in part]}
    for shown in history.shown:
        said = {name: getattr(shown, name) for name in ("name", "patterns", "start", "is_view")}
        yield {"e": "shown", **said, "ids": shown.ids.tolist(), "odd": list(shown.odd.items())}


def _cursor_events(number: int, cursor: Cursor) -> Iterator[dict[str, Any]]:
    yield {"e": "cursor", "cursor": number, "name": cursor.name, "patterns": cursor.patterns,
           "start": cursor.start, "fresh": cursor.fresh}  # fmt: skip
    for part in _parts(cursor.ids.tolist()):
        yield {"e": "dlv", "cursor": number, "ids": part}
    for odd in cursor.odd:
        yield {"e": "odd", "cursor": number, **asdict(odd)}
    for gap in cursor.gaps:
        yield {"e": "gap", "cursor": number, **asdict(gap)}
    for position, last_id in cursor.resumes:
        yield {"e": "resume", "cursor": number, "position": position, "last_id": last_id}


def _parts(values: list[int]) -> Iterator[list[int]]:
    return (values[i : i + PER_LINE] for i in range(0, len(values), PER_LINE))


def _apply(history: History, event: dict[str, Any]) -> None:
    kind = event.pop("e")
    if kind == "run":
        history.seed, history.in_order = event["seed"], event["in_order"]
        for name in event["channels"]:
            history.log.intern(name)
    elif kind == "message":
        names = history.log.names
        for message_id, ch, seq, value, data in zip(
            *(event[name] for name in ("id", "ch", "seq", "hash", "data")), strict=True
        ):
            history.log.agrees(message_id, names[ch], seq, value)
            if data:
                history.log.data[message_id] = data
    elif kind == "pub":
        _apply_tries(history, event)
    elif kind == "fault":
        history.faults.append(Fault(**event))
    elif kind in ("change", "expected", "state", "shown"):
        _apply_changes(history, kind, event)
    else:
        _apply_to_cursor(history, kind, event)


def _apply_changes(history: History, kind: str, event: dict[str, Any]) -> None:
    if kind == "change":
        changes = (Change(*change) for change in event["change"])
        history.log.changes.update(zip(event["id"], changes, strict=True))
    elif kind == "expected":
        history.expected = dict(event["of"])
    elif kind == "state":
        states = (State(*state) for state in event["state"])
        history.states.update(zip(event["id"], states, strict=True))
    else:
        odd = {message_id: State(*state) for message_id, state in event.pop("odd")}
        patterns, ids = tuple(event.pop("patterns")), array("q", event.pop("ids"))
        history.shown.append(Shown(**event, patterns=patterns, ids=ids, odd=odd))


def _apply_tries(history: History, event: dict[str, Any]) -> None:
    attempts = history.attempts
    keys = event["keys"]
    columns = zip(event["ch"], event["hash"], event["outcome"], event["id"], strict=True)
    for ch, value, outcome, message_id in columns:
        key = keys.get(str(len(attempts)))
        attempt = history.invoke(history.log.names[ch], value, key)
        attempts.outcome[attempt] = Outcome[outcome.upper()]
        attempts.id[attempt] = message_id


def _apply_to_cursor(history: History, kind: str, event: dict[str, Any]) -> None:
    number = event.pop("cursor")
    if kind == "cursor":
        patterns = tuple(event["patterns"])
        if number >= 0:
            history.cursor(event["name"], patterns, event["start"], event["fresh"])
        return
    cursor = history.told if number < 0 else history.cursors[number]
    if kind == "dlv":
        cursor.ids.extend(array("q", event["ids"]))
    elif kind == "odd":
        cursor.odd.append(Odd(**event))
    elif kind == "gap":
        cursor.gaps.append(Gap(**event))
    else:
        cursor.resumes.append((event["position"], event["last_id"]))
