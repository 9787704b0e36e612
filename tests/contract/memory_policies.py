"""`PolicyPort` over `MemoryQueues` and their log, with a place where a test may make it slow or fail."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from subscriptions.domain.delivery import (
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
from tests.contract.memory import Pause, at_once
from tests.contract.memory_queues import MemoryQueues

MOST = 1000
"""So many policies a namespace may have."""
Named = dict[tuple[str, str], dict[str, Any]]
"""By kind and name, in the order in which changes are told."""


class MemoryPolicies:
    """Implements `PolicyPort`."""

    def __init__(self, queues: MemoryQueues, pause: Pause = at_once) -> None:
        self._queues = queues
        self._log = queues.log
        self._pause = pause

    async def put(
        self, namespace: str, policy: Policy, *, if_match: Tags | None = None, if_absent: bool = False
    ) -> tuple[bool, str]:
        await self._pause("put")
        self._check_namespace(namespace)
        old = self._log.policies.get((namespace, policy.name))
        if (if_absent and old is not None) or (if_match is not None and old is None):
            raise GaplessError(Code.PRECONDITION_FAILED, f"policy {policy.name} is or is not there")
        if old is not None:
            _expect(old.tag, if_match)
        return old is None, self._put(namespace, policy).tag

    async def get(self, namespace: str, name: str) -> Policy:
        await self._pause("get")
        return self._one(namespace, name)

    async def all(self, namespace: str) -> list[Policy]:
        await self._pause("all")
        self._check_namespace(namespace)
        return list(self._read(namespace).policies)

    async def delete(self, namespace: str, name: str, *, if_match: Tags | None = None) -> None:
        await self._pause("delete")
        _expect(self._one(namespace, name).tag, if_match)
        del self._log.policies[namespace, name]
        self._queues.follow_policies(namespace)

    async def definitions(self, namespace: str) -> Definitions:
        await self._pause("definitions")
        self._check_namespace(namespace)
        return self._read(namespace)

    async def apply(
        self, namespace: str, wanted: Definitions, *, dry_run: bool, if_match: Tags | None = None
    ) -> tuple[list[Change], int]:
        await self._pause("apply")
        self._check_namespace(namespace)
        there = self._read(namespace)
        _expect(there.tag, if_match)
        known, asked = _named(there), _named(wanted)
        for (namespace_, name), row in self._log.rows.items():
            if namespace_ == namespace:
                known.setdefault(("channel", name), dict(row.own))
        changes: list[Change] = []
        for (kind, name), after in asked.items():
            before = known.get((kind, name))
            if before is not None and kind == "subscription":
                after = _kept(before, after)
            if before is None or without_order(before) != without_order(after):
                changes.append(Change(kind, name, before, after))
        for definition in wanted.subscriptions:
            if ("subscription", definition.name) not in known:
                self._check_new(definition)
        if not dry_run:
            self._write(namespace, wanted, {(change.kind, change.name) for change in changes})
        return changes, len(asked) - len(changes)

    def _write(self, namespace: str, wanted: Definitions, changed: set[tuple[str, str]]) -> None:
        for channel in wanted.channels:
            if ("channel", channel.name) in changed:
                row = self._log.row((namespace, channel.name), create=True)
                assert row is not None
                row.own = dict(channel.settings)
                self._log.refresh(row)
        for policy in wanted.policies:
            if ("policy", policy.name) in changed:
                self._put(namespace, policy)
        for definition in wanted.subscriptions:
            if ("subscription", definition.name) in changed:
                self._queues.define(namespace, definition, paused=definition.name in wanted.paused)

    def _put(self, namespace: str, policy: Policy) -> Policy:
        place = (namespace, policy.name)
        count = sum(there == namespace for there, _ in self._log.policies)
        if place not in self._log.policies and count >= MOST:
            raise GaplessError(Code.RATE_LIMITED, f"there are {MOST} policies already")
        stored = replace(policy, tag=repr(replace(policy, tag="")))
        self._log.policies[place] = stored
        self._queues.follow_policies(namespace)
        return stored

    def _read(self, namespace: str) -> Definitions:
        rows = sorted((n, row) for (ns, n), row in self._log.rows.items() if ns == namespace and row.own)
        queues = sorted(
            (q for q in self._queues.queues.values() if q.subscription.namespace == namespace),
            key=lambda q: q.subscription.name,
        )
        policies = [policy for (ns, _), policy in sorted(self._log.policies.items()) if ns == namespace]
        there = Definitions(
            tuple(ChannelDefinition(name, row.own) for name, row in rows),
            tuple(
                Definition(q.subscription.name, q.subscription.channels, q.subscription.start, q.own)
                for q in queues
            ),
            tuple(policies),
            frozenset(q.subscription.name for q in queues if q.subscription.paused),
        )
        return replace(there, tag=f"{_named(there)} {[q.subscription.id for q in queues]}")

    def _check_new(self, definition: Definition) -> None:
        place = f"subscriptions.{definition.name}"
        if definition.start.isdigit() and int(definition.start) > self._log.sequence:
            raise invalid(f"{place}.start", "lies in the future of this log")
        if "secret" not in definition.settings.get("push", {"secret": ""}):
            raise invalid(f"{place}.push.secret", "is required for a subscription that is new")

    def _check_namespace(self, namespace: str) -> None:
        if namespace not in self._log.namespaces:
            raise GaplessError(Code.NOT_FOUND, f"namespace {namespace} does not exist")

    def _one(self, namespace: str, name: str) -> Policy:
        policy = self._log.policies.get((namespace, name))
        if policy is None:
            raise GaplessError(Code.NOT_FOUND, f"policy {name} does not exist")
        return policy


def _expect(tag: str, if_match: Tags | None) -> None:
    if if_match is not None and "*" not in if_match and tag not in if_match:
        raise GaplessError(Code.PRECONDITION_FAILED, "it is not what If-Match names")


def _named(definitions: Definitions) -> Named:
    found: Named = {("channel", c.name): dict(c.settings) for c in definitions.channels}
    for p in definitions.policies:
        found["policy", p.name] = {
            "pattern": p.pattern,
            "applies_to": p.applies_to.value,
            "priority": p.priority,
            "definition": p.definition,
        }
    for s in definitions.subscriptions:
        paused = {"paused": True} if s.name in definitions.paused else {}
        found["subscription", s.name] = {
            "channels": list(s.channels),
            "start": s.start,
            **s.settings,
            **paused,
        }
    return found


def _kept(before: Settings, after: Mapping[str, Any]) -> dict[str, Any]:
    """`start` counts only for one that is new; a push without a secret keeps the one that is there."""
    kept = {**after, "start": before["start"]}
    if "push" in after and "push" in before:
        kept["push"] = {**before["push"], **after["push"]}
    return kept
