"""The latest view by the words of docs/protocol.md, slowly: each original by all that ever reached it.

It goes through a whole log, as the service gives it in JSON, once for each original. The client's fold goes
through it once, and the service never does.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def latest_of(log: list[Json]) -> list[Json]:
    """The originals of a channel's kept log, as `view=latest` shows them."""
    return [_shown(one, log) for one in log if one.get("action") in (None, "reply")]


def _shown(original: Json, log: list[Json]) -> Json:
    id_ = original["id"]
    reached = [one for one in log if one["id"] > id_ and one.get("target", 0) <= id_ <= _last(one)]
    shown = {**original, "version": reached[-1]["id"] if reached else id_}
    for one in reached:
        if one["action"] == "update":
            shown["data"] = one["data"]
    if any(one["action"] == "delete" for one in reached):
        shown["deleted"] = True
        del shown["data"]
    shown["replies"] = sum(one["action"] == "reply" for one in reached)
    return {**shown, "annotations": _summary([one for one in reached if one["action"] == "annotate"])}


def _last(change: Json) -> int:
    return int(change.get("through") or change.get("target") or 0)


def _summary(annotations: list[Json]) -> Json:
    """By name and mode, how many there are; `there` holds who made each of them."""
    there: list[tuple[str, str, str, str]] = []
    for one in annotations:
        mode, who = one["mode"], one.get("sender", "")
        made = (one["annotation"], mode, who, one.get("key", ""))
        if one.get("remove"):
            if made in there:
                there.remove(made)
            continue
        if mode == "unique":
            there = [other for other in there if other[1:3] != (mode, who)]
        if mode == "total" or made not in there:
            there.append(made)
    told: Json = {}
    for name, mode, _, key in there:
        count = sum(other[:2] == (name, mode) for other in there)
        told.setdefault(name, {})[mode] = True if mode == "flag" else count
        if key:
            keys = told[name].setdefault("keys", {})
            keys[key] = keys.get(key, 0) + 1
    return told
