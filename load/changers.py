"""Senders that change what others have published: each repeats its change until it is answered."""

from __future__ import annotations

import asyncio
import random
from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from load.api import Api, RefusedError, UnreachableError
from load.history import History, digest_of

ANSWER_S = 10.0
PAUSE_S = 0.05
HOT = 12
"""So many of the newest targets are chosen again and again, so that senders meet on them."""
KINDS = ("update", "update", "expect", "reply", "annotate", "annotate", "annotate", "delete", "cut", "odd")
REFUSED = 409
"""The status for a target that is a change itself, or has another version."""
EVERYTHING = [
    {
        "actions": ["publish", "subscribe", "consume", "manage", "moderate", "admin"],
        "channels": [">"],
        "subscriptions": [">"],
    }
]
GRANTS = [{"actions": ["publish", "subscribe", "moderate"], "channels": [">"]}]


@dataclass(slots=True)
class Board:
    """What all senders of a run share. `ids` are messages that are stored, in the order they became known."""

    history: History
    ids: array[int] = field(default_factory=lambda: array("q"))
    hot: deque[int] = field(default_factory=lambda: deque(maxlen=HOT))
    answers: Counter[str] = field(default_factory=Counter)
    strange: list[str] = field(default_factory=list)
    """Refusals for which there was no reason."""

    def channel_of(self, message_id: int) -> str:
        """The channel of a message that is known."""
        log = self.history.log
        return log.names[log.channel[log.row[message_id]]]

    def target(self, chance: random.Random) -> int:
        """An original, from anywhere in the log or one that was chosen lately."""
        if self.hot and chance.random() < 0.6:
            return chance.choice(self.hot)
        while not self.history.log.is_original(target := chance.choice(self.ids)):
            pass
        self.hot.append(target)
        return target


@dataclass(slots=True)
class Changer:
    """One sender. `run` makes one change after the other until `stop` is set and it has made `least`."""

    name: str
    api: Api
    board: Board
    chance: random.Random
    made: int = 0

    async def run(self, stop: asyncio.Event, least: int = 0) -> None:
        """Change what is there."""
        while not stop.is_set() or self.made < least:
            if not self.board.ids:
                await asyncio.sleep(PAUSE_S)
                continue
            self.made += 1
            await self._change(f"{self.name}-{self.made}", stop)

    async def _change(self, key: str, stop: asyncio.Event) -> None:
        log, kind = self.board.history.log, self.chance.choice(KINDS)
        target = self.board.target(self.chance)
        if kind == "odd":
            # A change of a change is refused. Until one is known, the target is an original nevertheless.
            target = next(reversed(log.changes), target)
        channel = self.board.channel_of(target)
        bodies = self._bodies(kind, target, key)
        tries = [
            self.board.history.invoke(channel, digest_of(body), f"{key}/{number}")
            for number, body in enumerate(bodies)
        ]
        path, headers = f"/v1/channels/{channel}/messages", {"Idempotency_Key": key}
        version = await self._version(f"{path}/{target}?view=latest") if kind == "expect" else None
        if version is not None:
            headers["Expected_Version"] = str(version)
        said = await self._ask(path, bodies, headers, stop)
        if said is None:
            return
        if isinstance(said, RefusedError):
            self._refused(said, tries, is_odd=version is not None or not log.is_original(target))
            return
        self.board.answers["stored"] += 1
        for attempt, stored in zip(tries, said.get("messages", [said]), strict=True):
            self.board.history.ok(attempt, stored["id"], stored["seq"])
        if version is not None:
            self.board.history.expected[said["id"]] = version

    def _bodies(self, kind: str, target: int, key: str) -> list[dict[str, Any]]:
        """The messages of one request, a change of `target` first."""
        chance = self.chance
        change: dict[str, Any] = {"target": target, "action": kind, "data": key}
        match kind:
            case "cut":
                # The rest of a conversation goes, and something else stands in its place.
                through = target + chance.choice((0, 20, 300))
                cut = {"target": target, "action": "delete", "through": through}
                return [cut, {**change, "action": "reply"}]
            case "annotate":
                annotation: dict[str, Any] = {"annotation": chance.choice(("like", "love"))}
                annotation["mode"] = chance.choice(("total", "distinct", "unique", "flag"))
                annotation["key"] = chance.choice((None, "👍"))
                annotation["remove"] = chance.random() < 0.25
                return [{"target": target, "action": kind, **annotation}]
            case "expect" | "odd":
                return [{**change, "action": "update"}]
        return [change]

    async def _version(self, path: str) -> int | None:
        """What a message's version is now; None if nobody says."""
        try:
            return int((await self.api.call("GET", path, None, ANSWER_S))["version"])
        except (UnreachableError, RefusedError):
            return None

    async def _ask(
        self, path: str, bodies: list[dict[str, Any]], headers: dict[str, str], stop: asyncio.Event
    ) -> dict[str, Any] | RefusedError | None:
        """Ask until there is an answer: without one it may be stored already. None: there was none until
        `stop`."""
        body = bodies if len(bodies) > 1 else bodies[0]
        while True:
            try:
                said: dict[str, Any] = await self.api.call("POST", path, body, ANSWER_S, **headers)
                return said
            except RefusedError as error:
                return error
            except UnreachableError:
                self.board.answers["without an answer"] += 1
                if stop.is_set():
                    return None
                await asyncio.sleep(PAUSE_S)

    def _refused(self, error: RefusedError, tries: list[int], *, is_odd: bool) -> None:
        for attempt in tries:
            self.board.history.fail(attempt)
        self.board.answers[f"refused with {error.status}"] += 1
        if not is_odd or error.status != REFUSED:
            self.board.strange.append(f"{self.name}: {error}")


async def join(api: Api, names: list[str]) -> list[str]:
    """A key for each of some senders, who may change what others sent. The first key of a service closes it
    for all others."""
    made = [await api.call("POST", "/v1/keys", {"name": name, "grants": GRANTS}) for name in names]
    return [str(each["key"]) for each in made]
