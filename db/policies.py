"""Implements `PolicyPort`: policies, and import and export of all definitions."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from db.connect import FAILURES, Pool, translate
from db.namespaces import Namespaces
from db.queries import load
from db.rows import tag_list
from db.subscriptions import split
from subscriptions.domain.delivery import (
    AppliesTo,
    Change,
    ChannelDefinition,
    Definition,
    Definitions,
    Policy,
    Settings,
    Tags,
    without_order,
)
from subscriptions.domain.errors import Code, GaplessError, invalid
from subscriptions.domain.pattern import to_regex

APPLY_TIMEOUT_S = 60.0
SLICE = 1000
"""How many channels one statement writes."""


class Policies:
    """Policies and definitions over one pool."""

    def __init__(self, pool: Pool, namespaces: Namespaces) -> None:
        self._pool = pool
        self._namespaces = namespaces
        self._blocks = load()

    async def put(
        self, namespace: str, policy: Policy, *, if_match: Tags | None = None, if_absent: bool = False
    ) -> tuple[bool, str]:
        tags = tag_list(if_match)
        namespace_id = await self._namespaces.id(namespace)
        row = await self._pool.fetchrow("put_policy_if", namespace_id, *_columns(policy), tags, if_absent)
        if row["made"] is None:
            detail = (
                f"policy {policy.name} does not exist, so it is not what If-Match names; nothing was done"
            )
            raise GaplessError(Code.PRECONDITION_FAILED, detail)
        return row["made"], row["tag"]

    async def get(self, namespace: str, name: str) -> Policy:
        row = await self._pool.fetchrow("policy", await self._namespaces.id(namespace), name)
        if row is None:
            raise _no_policy(name)
        return _policy(row)

    async def all(self, namespace: str) -> list[Policy]:
        return [
            _policy(row) for row in await self._pool.fetch("policies", await self._namespaces.id(namespace))
        ]

    async def delete(self, namespace: str, name: str, *, if_match: Tags | None = None) -> None:
        tags = tag_list(if_match)
        if not await self._pool.fetchval("delete_policy", await self._namespaces.id(namespace), name, tags):
            raise _no_policy(name)

    async def definitions(self, namespace: str) -> Definitions:
        namespace_id = await self._namespaces.id(namespace)
        try:
            async with (
                self._pool.acquire() as connection,
                asyncio.timeout(APPLY_TIMEOUT_S),
                connection.transaction(isolation="repeatable_read", readonly=True),
            ):
                return await self._read(connection, namespace_id)
        except FAILURES as error:
            raise translate(error) from error

    async def apply(
        self,
        namespace: str,
        wanted: Definitions,
        *,
        dry_run: bool,
        digest: bytes | None = None,
        if_match: Tags | None = None,
    ) -> tuple[list[Change], int]:
        """As the port says. With the `digest` of a file, nothing is done if that file was applied last."""
        namespace_id = await self._namespaces.id(namespace)
        try:
            async with self._pool.acquire() as connection, asyncio.timeout(APPLY_TIMEOUT_S):
                transaction = connection.transaction()
                await transaction.start()
                names = [definition.name for definition in wanted.subscriptions]
                await connection.execute(self._blocks["lock_defined_subscriptions"], namespace_id, names)
                await connection.execute(self._blocks["lock_definitions"])
                if digest is not None and not await connection.fetchval(
                    self._blocks["import_once"], namespace_id, digest
                ):
                    await transaction.rollback()
                    return [], 0
                named = [channel.name for channel in wanted.channels]
                there = await self._read(connection, namespace_id, named)
                if if_match is not None and "*" not in if_match and there.tag not in if_match:
                    detail = "the definitions are not what If-Match names; nothing was changed"
                    raise GaplessError(Code.PRECONDITION_FAILED, detail)
                changes, same = compare(there, wanted)
                await connection.execute(
                    self._blocks["lock_defined_channels"], namespace_id, *_channels_of(changes)
                )
                # A dry run writes too and rolls back, so that it reports what would be refused.
                await _Writer(connection, namespace_id, self._blocks, there).write(wanted, changes)
                await (transaction.rollback() if dry_run else transaction.commit())
                return changes, same
        except FAILURES as error:
            raise translate(error) from error

    async def _read(self, connection: Any, namespace_id: int, named: Sequence[str] = ()) -> Definitions:
        """All definitions. Channels without settings are read only if they are `named`."""
        channels = await connection.fetch(self._blocks["defined_channels"], namespace_id, list(named))
        subscriptions = await connection.fetch(self._blocks["defined_subscriptions"], namespace_id)
        policies = await connection.fetch(self._blocks["policies"], namespace_id)
        return Definitions(
            tuple(ChannelDefinition(r["name"], msgspec.json.decode(r["own"])) for r in channels),
            tuple(
                Definition(r["name"], tuple(r["channels"]), r["start"], msgspec.json.decode(r["own"]))
                for r in subscriptions
            ),
            tuple(_policy(r) for r in policies),
            frozenset(r["name"] for r in subscriptions if r["paused"]),
            _tag([row for row in channels if row["own"] != "{}"], subscriptions, policies),
        )


def compare(there: Definitions, wanted: Definitions) -> tuple[list[Change], int]:
    """The changes that bring the definitions to what is wanted, and how many are already so."""
    changes: list[Change] = []
    same = 0
    for kind, before, after in (
        ("channel", _channels(there), _channels(wanted)),
        ("policy", _policies(there), _policies(wanted)),
        ("subscription", _subscriptions(there), _subscriptions(wanted)),
    ):
        for name, value in after.items():
            old = before.get(name)
            if old is not None and kind == "subscription":
                value = _as_import(old, value)
            if old is not None and without_order(old) == without_order(value):
                same += 1
            else:
                changes.append(Change(kind, name, old, value))
    return changes, same


def _channels_of(changes: Sequence[Change]) -> tuple[list[str], str | None]:
    """The channels that the changes affect: names, and one expression for all patterns, old and new."""
    names = [change.name for change in changes if change.kind == "channel"]
    policies = [v for c in changes if c.kind == "policy" for v in (c.before, c.after) if v is not None]
    patterns = [to_regex(v["pattern"]) for v in policies if v["applies_to"] == AppliesTo.CHANNELS.value]
    return names, "|".join(patterns) or None


def _as_import(old: Settings, new: Settings) -> dict[str, Any]:
    """The wanted settings for a subscription that exists: `start` counts only at creation, a push without a
    secret keeps the old secret, and it is pushed for who asks now."""
    value = {**new, "start": old["start"]}
    push, had = new.get("push"), old.get("push")
    if push is not None and had is not None:
        value["push"] = {name: had[name] for name in had if name != "by"} | push
    return value


def _channels(definitions: Definitions) -> dict[str, Settings]:
    return {c.name: c.settings for c in definitions.channels}


def _policies(definitions: Definitions) -> dict[str, Settings]:
    return {
        p.name: {
            "pattern": p.pattern,
            "applies_to": p.applies_to.value,
            "priority": p.priority,
            "definition": p.definition,
        }
        for p in definitions.policies
    }


def _subscriptions(definitions: Definitions) -> dict[str, Settings]:
    return {
        s.name: {
            "channels": list(s.channels),
            "start": s.start,
            **s.settings,
            **({"paused": True} if s.name in definitions.paused else {}),
        }
        for s in definitions.subscriptions
    }


class _Writer:
    """Writes changes on one connection, in its open transaction."""

    def __init__(
        self, connection: Any, namespace_id: int, blocks: Mapping[str, str], there: Definitions
    ) -> None:
        self._connection = connection
        self._namespace_id = namespace_id
        self._blocks = blocks
        self._there = there

    async def write(self, wanted: Definitions, changes: list[Change]) -> None:
        changed = {(change.kind, change.name) for change in changes}
        channels = [channel for channel in wanted.channels if ("channel", channel.name) in changed]
        for at in range(0, len(channels), SLICE):
            part = channels[at : at + SLICE]
            await self._call("set_channels", [c.name for c in part], [_text(c.settings) for c in part])
        for policy in wanted.policies:
            if ("policy", policy.name) in changed:
                await self._call("put_policy", *_columns(policy))
        before = {s.name for s in self._there.subscriptions}
        for definition in wanted.subscriptions:
            if ("subscription", definition.name) in changed:
                await self._subscription(definition, definition.name in before)
                await self._call(
                    "pause_subscription", definition.name, definition.name in wanted.paused, None
                )

    async def _subscription(self, definition: Definition, is_there: bool) -> None:
        settings = _text(definition.settings)
        channels = split(definition.channels)
        if is_there:
            await self._call("change_subscription", definition.name, *channels, settings, True, None, None)
            return
        push = definition.settings.get("push")
        if push is not None and "secret" not in push:
            raise invalid(
                f"subscriptions.{definition.name}.push.secret", "is required for a subscription that is new"
            )
        start = definition.start
        made = await self._call("create_subscription", definition.name, *channels, start, settings, None)
        if made["subscription_id"] is None:
            raise invalid(f"subscriptions.{definition.name}.start", "lies in the future of this log")

    async def _call(self, block: str, *arguments: object) -> Any:
        return await self._connection.fetchrow(self._blocks[block], self._namespace_id, *arguments)


def _columns(policy: Policy) -> tuple[object, ...]:
    return (
        policy.name,
        policy.pattern,
        to_regex(policy.pattern),
        policy.applies_to.value,
        policy.priority,
        _text(policy.definition),
    )


def _policy(row: Any) -> Policy:
    return Policy(
        row["name"],
        row["pattern"],
        AppliesTo(row["applies_to"]),
        row["priority"],
        msgspec.json.decode(row["definition"]),
        row["tag"],
    )


def _tag(channels: Sequence[Any], subscriptions: Sequence[Any], policies: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for rows, columns in (
        (channels, ("name", "own")),
        (subscriptions, ("name", "tag")),
        (policies, ("name", "tag")),
    ):
        digest.update(msgspec.json.encode([[row[column] for column in columns] for row in rows]))
    return digest.hexdigest()[:32]


def _text(settings: Settings) -> str:
    return msgspec.json.encode(settings).decode()


def _no_policy(name: str) -> GaplessError:
    return GaplessError(Code.NOT_FOUND, f"policy {name} does not exist")
