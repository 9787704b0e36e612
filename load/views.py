"""Judges what readers and the service make of changes, by a slow model: each original by all that reached it.

It shares nothing with `load.fold`, which goes through the messages one by one.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from load.history import Change, Cursor, History, Log, Shown, State, as_text
from load.patterns import matches_any
from load.truth import Truth
from load.verdict import Breach, Verdict

Reached = list[tuple[int, Change]]
"""The changes that reached one original, each with its id, oldest first."""


def check_views(truth: Truth, verdict: Verdict) -> None:
    """Check that each change comes after its target, was allowed by the version it expected, and is shown as
    it must be by every reader and by the service."""
    history = truth.history
    model: dict[int, State] = {}
    for ids in truth.by_channel:
        reached = _reached(history.log, ids)
        _check_targets(history.log, ids, verdict)
        _check_expected(history, ids, reached, verdict)
        for message_id in ids:
            if history.log.is_original(message_id):
                model[message_id] = _state(history.log, message_id, reached.get(message_id, []))
    wrong = {each for each, state in history.states.items() if model.get(each) != state}
    for shown in history.shown:
        _check_shown(shown, truth, model, wrong, verdict)


def check_order(cursor: Cursor, log: Log, verdict: Verdict) -> None:
    """Check that one reader got no change before its target, nor without it."""
    seen: set[int] = set()
    for message_id in cursor.ids:
        change = log.changes.get(message_id)
        seen.add(message_id)
        if change is None or change.target <= cursor.start or change.target in seen:
            continue
        row = log.row.get(change.target)
        if row is None or not any(g.covers(log.names[log.channel[row]], log.seq[row]) for g in cursor.gaps):
            verdict.add(Breach.EARLY, f"{cursor.name}: id {message_id} before its target {change.target}")


def _check_targets(log: Log, ids: Iterable[int], verdict: Verdict) -> None:
    """Within one channel: a change is stored only if its target is an original that is there already."""
    before: set[int] = set()
    for message_id in ids:
        change = log.changes.get(message_id)
        if change is not None and change.target not in before:
            verdict.add(Breach.EARLY, f"id {message_id} changes {change.target}: no original before it")
        if log.is_original(message_id):
            before.add(message_id)


def _reached(log: Log, ids: Sequence[int] | array[int]) -> dict[int, Reached]:
    """By which changes each original of a channel was reached."""
    reached: dict[int, Reached] = defaultdict(list)
    for message_id in ids:
        change = log.changes.get(message_id)
        if change is None:
            continue
        if change.action == "delete" and change.through:
            for original in ids:
                if change.target <= original <= change.through and original < message_id:
                    reached[original].append((message_id, change))
        else:
            reached[change.target].append((message_id, change))
    return reached


def _check_expected(
    history: History, ids: Iterable[int], reached: dict[int, Reached], verdict: Verdict
) -> None:
    for message_id in ids:
        if message_id not in history.expected:
            continue
        target = history.log.changes[message_id].target
        version = max((each for each, _ in reached[target] if each < message_id), default=target)
        if version != history.expected[message_id]:
            text = f"id {message_id} expected version {history.expected[message_id]} of {target}"
            verdict.add(Breach.OUTDATED, f"{text}, which had {version}")


def _state(log: Log, message_id: int, reached: Reached) -> State:
    """What an original has become."""
    deletions = [each for each, change in reached if change.action == "delete"]
    data = log.data.get(message_id, 0)
    for each, change in reached:
        if change.action == "update":
            data = log.data.get(each, 0)
    if deletions:
        data = 0
    replies = sum(change.action == "reply" for _, change in reached)
    version = reached[-1][0] if reached else message_id
    return State(version, data, bool(deletions), replies, as_text(_summary(reached)))


def _summary(reached: Reached) -> dict[str, Any]:
    """What annotations come to: those left when each that was taken back or replaced is crossed out."""
    there: list[Change] = []
    for _, change in reached:
        if change.action != "annotate":
            continue
        same = [each for each in there if each[3:7] == change[3:7]]
        if change.remove:
            if same:
                there.remove(same[0])
        elif change.mode == "total" or not same:
            mine = (change.mode, change.annotator)
            there = [each for each in there if change.mode != "unique" or (each.mode, each.annotator) != mine]
            there.append(change)
    told: dict[str, Any] = {}
    for name, mode in {(change.name, change.mode) for change in there}:
        counted = [change for change in there if (change.name, change.mode) == (name, mode)]
        told.setdefault(name, {})[mode] = True if mode == "flag" else len(counted)
    for name, modes in told.items():
        keys = [change.key for change in there if change.name == name and change.key]
        if keys:
            modes["keys"] = {key: keys.count(key) for key in keys}
    return told


def _check_shown(
    shown: Shown, truth: Truth, model: dict[int, State], wrong: set[int], verdict: Verdict
) -> None:
    """Compare what is shown with the model: the same originals, each in its state."""
    breach = Breach.VIEW if shown.is_view else Breach.FOLDED
    names = truth.history.log.names
    owed = {
        each
        for name, ids in zip(names, truth.by_channel, strict=True)
        if matches_any(shown.patterns, name)
        for each in ids
        if each > shown.start and truth.history.log.is_original(each)
    }
    there = set(shown.ids)
    for each in sorted(owed - there):
        verdict.add(breach, f"{shown.name}: original {each} is missing")
    for each in sorted(there - owed):
        verdict.add(breach, f"{shown.name}: {each} is shown, and is no original to show")
    verdict.add(breach, f"{shown.name}: an original is shown twice", len(shown.ids) - len(there))
    for each in sorted(there & owed & (wrong | shown.odd.keys())):
        state = shown.odd.get(each, truth.history.states[each])
        if state != model[each]:
            verdict.add(breach, f"{shown.name}: original {each} is {state}, must be {model[each]}")
