"""Implements `SubscriptionPort`, and finds subscriptions for the engine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
from prometheus_client import Counter

from db.connect import Pool
from db.namespaces import Namespaces
from db.rows import tag_list
from subscriptions.domain.delivery import (
    Definition,
    Length,
    Settings,
    Stats,
    Subscription,
    Tags,
    without_order,
)
from subscriptions.domain.errors import Code, GaplessError, invalid, unavailable
from subscriptions.domain.model import microseconds
from subscriptions.domain.pattern import check_budget, is_pattern, to_regex
from subscriptions.domain.selection import MAX_CHANNELS

PURGED = Counter("gapless_purged_total", "Messages purged from subscriptions.")
PURGE_LIMIT = 5000
"""How many rows one statement removes."""
MAX_COUNTED = 10_000
"""For a length, at most this many rows are counted, and at most this many messages that pass a filter."""

_PLAIN = ("ack_wait", "max_deliver", "backoff", "max_in_flight", "ordering")


class Subscriptions:
    """Definitions over one pool. `settled` returns the newest settled id that is known. None: none is known
    yet, and the database finds one by time."""

    def __init__(
        self, pool: Pool, namespaces: Namespaces, settled: Callable[[], int | None] = lambda: None
    ) -> None:
        self._pool = pool
        self._namespaces = namespaces
        self._settled = settled

    async def put(
        self, namespace: str, definition: Definition, *, if_match: Tags | None = None, if_absent: bool = False
    ) -> tuple[Subscription, bool]:
        if if_match is not None:
            return await self._replace(namespace, definition, if_match), False
        row = await self._pool.fetchrow(
            "create_subscription",
            await self._namespaces.id(namespace),
            definition.name,
            *split(definition.channels),
            definition.start,
            _text(definition.settings),
            self._settled(),
        )
        if row["subscription_id"] is None:
            raise invalid("start", "lies in the future of this log")
        if if_absent and not row["made"]:
            detail = f"subscription {definition.name} is there already; nothing was changed"
            raise GaplessError(Code.PRECONDITION_FAILED, detail)
        there = await self._row(namespace, definition.name)
        if not row["made"] and (differing := differences(there, definition)):
            others = ", ".join(differing)
            raise GaplessError(
                Code.CONFLICT,
                f"subscription {definition.name} exists and differs in {others}; PATCH changes it",
            )
        return subscription(there, namespace), row["made"]

    async def _replace(self, namespace: str, definition: Definition, if_match: Tags) -> Subscription:
        """Replace the whole definition except `start`."""
        name = definition.name
        found = await self._pool.fetchrow("subscription", await self._namespaces.id(namespace), name)
        if found is None:
            detail = f"subscription {name} does not exist, so it is not what If-Match names; nothing was done"
            raise GaplessError(Code.PRECONDITION_FAILED, detail)
        _check_tag(found, if_match)
        if "start" in differences(found, definition):
            detail = f"subscription {name} exists with a different start; seek moves it"
            raise GaplessError(Code.CONFLICT, detail)
        changed = await self._pool.fetchval(
            "change_subscription",
            found["namespace_id"],
            name,
            *split(definition.channels),
            _text(definition.settings),
            True,
            self._settled(),
            list(if_match),
        )
        if changed is None:
            raise no_subscription(name)
        return await self.get(namespace, name, stats=False)

    async def get(self, namespace: str, name: str, *, stats: bool) -> Subscription:
        row = await self._row(namespace, name)
        if not stats:
            return subscription(row, namespace)
        counted = await self._pool.fetchrow("subscription_stats", row["id"])
        if counted is None:
            raise no_subscription(name)
        if counted["cursor"] is None:
            raise unavailable(
                f"subscription {name} has no progress: it was restored from a dump that is not whole"
            )
        return subscription(row, namespace, _stats(counted))

    async def page(
        self, namespace: str, pattern_regex: str | None, after: str, limit: int
    ) -> list[Subscription]:
        namespace_id = await self._namespaces.id(namespace)
        rows = await self._pool.fetch("subscriptions", namespace_id, pattern_regex, after, limit)
        return [subscription(row, namespace) for row in rows]

    async def patch(
        self,
        namespace: str,
        name: str,
        channels: tuple[str, ...] | None,
        settings: Settings,
        *,
        if_match: Tags | None = None,
    ) -> Subscription:
        found = await self._pool.fetchval(
            "change_subscription",
            await self._namespaces.id(namespace),
            name,
            *(split(channels) if channels is not None else (None, None, None)),
            _text(settings),
            False,
            self._settled(),
            tag_list(if_match),
        )
        if found is None:
            raise no_subscription(name)
        if found == 0:
            raise invalid("push.secret", "is required: there is none to keep")
        return await self.get(namespace, name, stats=False)

    async def bind(
        self,
        namespace: str,
        name: str,
        channels: tuple[str, ...],
        bound: bool,
        *,
        if_match: Tags | None = None,
    ) -> Subscription:
        """As the port says. Messages under way stay, also those of a channel that is taken away."""
        namespace_id = await self._namespaces.id(namespace)
        done: int | None = 0
        while done == 0:
            # If another session changed the channels in between, this begins again.
            row = await self._row(namespace, name)
            if if_match is not None:
                _check_tag(row, if_match)
            there: list[str] = row["channels"]
            wanted = _with(there, channels) if bound else [text for text in there if text not in channels]
            if wanted == there:
                break
            if not wanted:
                raise invalid("channels", "would leave the subscription without any; delete it instead")
            arguments = (namespace_id, name, there, *split(wanted), self._settled(), tag_list(if_match))
            done = await self._pool.fetchval("replace_channels", *arguments)
        if done is None:
            raise no_subscription(name)
        return await self.get(namespace, name, stats=True)

    async def delete(
        self,
        namespace: str,
        name: str,
        *,
        if_match: Tags | None = None,
        if_empty: bool = False,
        if_unused: bool = False,
    ) -> None:
        namespace_id = await self._namespaces.id(namespace)
        arguments = (namespace_id, name, if_empty, if_unused, tag_list(if_match))
        outcome = await self._pool.fetchval("remove_subscription", *arguments)
        if outcome is None:
            raise no_subscription(name)
        if obstacle := _OBSTACLES.get(outcome):
            raise GaplessError(Code.CONFLICT, f"subscription {name} {obstacle}; it was not deleted")

    async def purge(
        self, namespace: str, name: str, settled: int | None, *, if_match: Tags | None = None
    ) -> int:
        namespace_id = await self._namespaces.id(namespace)
        asked = (namespace_id, name, self._settled() if settled is None else settled, PURGE_LIMIT)
        total = 0
        upto = moves = None
        while True:
            try:
                row = await self._pool.fetchrow("purge_subscription", *asked, upto, moves, tag_list(if_match))
            except GaplessError as error:
                if error.code is Code.PRECONDITION_FAILED and upto is not None:
                    # The definition was changed since. Return what was purged so far.
                    return total
                raise
            if row["subscription_id"] is None:
                raise no_subscription(name)
            total += int(row["purged"])
            upto, moves = row["upto"], row["moves"]
            PURGED.inc(row["purged"])
            if not row["more"]:
                return total

    async def length(self, namespace: str, name: str) -> Length:
        namespace_id = await self._namespaces.id(namespace)
        row = await self._pool.fetchrow("subscription_length", namespace_id, name, MAX_COUNTED)
        if row is None:
            raise no_subscription(name)
        return Length(row["waiting"], row["leased"], row["exact"])

    async def seek(self, namespace: str, name: str, to: str, *, if_match: Tags | None = None) -> Subscription:
        asked = (await self._namespaces.id(namespace), name, to, self._settled(), tag_list(if_match))
        moved = await self._pool.fetchval("seek_subscription", *asked)
        if moved is False:
            raise invalid("to", "lies in the future of this log")
        return await self.get(namespace, name, stats=True)

    async def try_seek(
        self, namespace: str, name: str, to: str, *, if_match: Tags | None = None
    ) -> tuple[Subscription, Stats | None]:
        asked = (await self._namespaces.id(namespace), name, to, self._settled(), tag_list(if_match))
        row = await self._pool.fetchrow("try_seek", *asked)
        if row["moved"] is False:
            raise invalid("to", "lies in the future of this log")
        there = await self._row(namespace, name)
        if row["after"] is None:
            raise no_subscription(name)
        before = None if row["before"] is None else _stats(msgspec.json.decode(row["before"]))
        return subscription(there, namespace, _stats(msgspec.json.decode(row["after"]))), before

    async def pause(
        self, namespace: str, name: str, paused: bool, *, if_match: Tags | None = None
    ) -> Subscription:
        asked = (await self._namespaces.id(namespace), name, paused, tag_list(if_match))
        if not await self._pool.fetchval("pause_subscription", *asked):
            raise no_subscription(name)
        return await self.get(namespace, name, stats=True)

    async def pause_pushed(self, namespace: str, name: str, url: str) -> bool:
        paused: bool = await self._pool.fetchval(
            "pause_pushed", await self._namespaces.id(namespace), name, url
        )
        return paused

    async def by_id(self, ids: Sequence[int]) -> list[Subscription]:
        """The subscriptions with these ids that still exist."""
        return await self._several("subscriptions_by_id", list(ids))

    async def pushed(self, namespaces: Collection[str]) -> list[Subscription]:
        """The subscriptions of these namespaces that the service delivers by webhook."""
        return await self._several("pushed_subscriptions", await self._namespaces.ids(namespaces))

    async def _several(self, block: str, *arguments: object) -> list[Subscription]:
        rows = await self._pool.fetch(block, *arguments)
        return [subscription(row, await self._namespaces.name(row["namespace_id"])) for row in rows]

    async def _row(self, namespace: str, name: str) -> Any:
        row = await self._pool.fetchrow("subscription", await self._namespaces.id(namespace), name)
        if row is None:
            raise no_subscription(name)
        return row


def _with(there: list[str], more: Sequence[str]) -> list[str]:
    """Both lists together, each channel once. Raises `invalid_request` if these are too many."""
    wanted = list(dict.fromkeys((*there, *more)))
    if wanted != there:
        if len(wanted) > MAX_CHANNELS:
            raise invalid("channels", f"would be more than {MAX_CHANNELS} together with those there")
        check_budget(wanted, "channels")
    return wanted


_OBSTACLES = {
    "not empty": "holds messages that are not settled",
    "used": "has members: streams of deliveries, or pulls that wait",
}


def _check_tag(row: Any, if_match: Tags) -> None:
    if "*" not in if_match and row["tag"] not in if_match:
        detail = (
            f"the definition of subscription {row['name']} is not what If-Match names; nothing was changed"
        )
        raise GaplessError(Code.PRECONDITION_FAILED, detail)


def no_subscription(name: str) -> GaplessError:
    """`subscription_not_found`."""
    return GaplessError(Code.SUBSCRIPTION_NOT_FOUND, f"subscription {name} does not exist")


def split(channels: Sequence[str]) -> tuple[list[str], list[str], str | None]:
    """Channels as they are stored: all as given, the plain names, and one expression for the patterns."""
    patterns = [text for text in channels if is_pattern(text)]
    names = [text for text in channels if not is_pattern(text)]
    return list(channels), names, "|".join(map(to_regex, patterns)) or None


def differences(row: Any, definition: Definition) -> list[str]:
    """The members in which the stored definition differs from the given one."""
    own, asked = (_comparable(each) for each in (msgspec.json.decode(row["own"]), definition.settings))
    found = [member for member in sorted(own.keys() | asked.keys()) if own.get(member) != asked.get(member)]
    if set(definition.channels) != set(row["channels"]):
        found.insert(0, "channels")
    # A start given as a time span ago becomes another time with each repetition of the request.
    is_time = "T" in row["start"] and "T" in definition.start
    if row["start"] != definition.start and not is_time:
        found.insert(0, "start")
    return found


def _comparable(settings: Settings) -> dict[str, Any]:
    """Settings without what is no part of the definition: orders of sets, and for whom it is pushed."""
    push = settings.get("push")
    bare = {} if push is None else {"push": {name: push[name] for name in push if name != "by"}}
    return {**without_order(settings), **bare}


def subscription(row: Any, namespace: str, stats: Stats | None = None) -> Subscription:
    """A row of `subscriptions` as a value, with the settings in force."""
    origins: dict[str, str] = msgspec.json.decode(row["origins"])
    settings: dict[str, Any] = {name: row[name] for name in _PLAIN}
    for name in ("message_ttl", "max_backlog", "expires"):
        if row[name] is not None:
            settings[name] = row[name]
    if "retain" in origins:
        settings["retain"] = row["retain"]
    asked = {name: row[name] for name in ("types", "keys", "changes") if row[name]}
    if asked:
        settings["filter"] = asked
    if "dead_letter" in origins:
        settings["dead_letter"] = {"channel": row["dead_letter"]}
        if row["keep"] is not None:
            settings["dead_letter"]["keep"] = row["keep"] or False
    if push := msgspec.json.decode(row["own"]).get("push"):
        settings["push"] = push
    return Subscription(
        id=row["id"],
        namespace=namespace,
        name=row["name"],
        channels=tuple(row["channels"]),
        start=row["start"],
        paused=row["paused"],
        created_at_us=microseconds(row["created_at"]),
        settings=settings,
        origins=origins,
        stats=stats,
        tag=row["tag"],
    )


def _stats(row: Any) -> Stats:
    oldest = row["oldest"]
    return Stats(
        lag=row["ahead"] + row["ready"] + row["delayed"] + row["waiting"],
        in_flight=row["leased"],
        delayed=row["delayed"],
        waiting=row["waiting"],
        redelivered=row["redelivered"],
        acked=row["acked"],
        dead_lettered=row["dead_lettered"],
        removed_by_retention=row["removed"],
        purged=row["purged"],
        dead_letters=row["dead_letters"],
        oldest_unacked_seconds=None if oldest is None else max(0.0, float(oldest)),
        cursor=row["cursor"],
    )


def _text(settings: Settings) -> str:
    return msgspec.json.encode(settings).decode()
