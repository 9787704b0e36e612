"""Writes subscriptions, policies and definitions as the JSON of the protocol. It never shows a secret."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from app.api import answers
from app.api.settings import nested
from app.message.json import plain
from app.message.times import rfc3339
from subscriptions.domain.delivery import (
    SUBSCRIPTION_SETTINGS,
    AppliesTo,
    Change,
    Definitions,
    Length,
    Policy,
    Settings,
    Stats,
    Subscription,
)

_encode: Final = msgspec.json.Encoder().encode
assert set(answers.Stats.__struct_fields__) == {field.name for field in dataclasses.fields(Stats)}


def encode_subscription(subscription: Subscription) -> bytes:
    """A subscription with its settings in force, the origin of each, and its stats if they were asked for."""
    return _encode(_shown(subscription))


def encode_try(moved: Subscription, before: Stats | None) -> bytes:
    """The answer to a dry run of a seek: the subscription after it, and the stats of now."""
    return _encode({**_shown(moved), "before": before and _stats(before), "dry_run": True})


def _shown(subscription: Subscription) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "name": subscription.name,
        "channels": subscription.channels,
        "start": start(subscription.start),
        **shown_settings(subscription.settings),
        "paused": subscription.paused,
        "created_at": rfc3339(subscription.created_at_us).decode(),
        "origins": dict(subscription.origins),
    }
    if subscription.stats is not None:
        shown["stats"] = _stats(subscription.stats)
    return shown


def _stats(stats: Stats) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in answers.Stats.__struct_fields__}


def encode_length(length: Length) -> bytes:
    """How many messages a subscription holds."""
    return _encode(length)


def encode_policy(policy: Policy) -> bytes:
    """One policy."""
    return _encode({"name": policy.name, **_policy(policy)})


def encode_policies(policies: Iterable[Policy]) -> bytes:
    """All policies."""
    return b'{"policies":[%b]}' % b",".join(map(encode_policy, policies))


def encode_definitions(definitions: Definitions) -> bytes:
    """The document of definitions, which can be imported again: own settings only."""
    subscriptions = []
    for defined in definitions.subscriptions:
        shown: dict[str, Any] = {
            "name": defined.name,
            "channels": defined.channels,
            "start": start(defined.start),
            **shown_settings(defined.settings),
        }
        if defined.name in definitions.paused:
            shown["paused"] = True
        subscriptions.append(shown)
    document = {
        "version": 1,
        "channels": [{"name": c.name, **nested(c.settings)} for c in definitions.channels],
        "subscriptions": subscriptions,
        "policies": [{"name": policy.name, **_policy(policy)} for policy in definitions.policies],
    }
    return _encode(document)


def encode_changes(changes: Iterable[Change], unchanged: int, *, dry_run: bool) -> bytes:
    """The changes that an import made, or would make."""
    made: list[str] = []
    updated: list[str] = []
    diff = []
    for change in changes:
        (made if change.before is None else updated).append(f"{change.kind}:{change.name}")
        before = None if change.before is None else _side(change.kind, change.before)
        after = _side(change.kind, change.after)
        diff.append({"kind": change.kind, "name": change.name, "from": before, "to": after})
    answer = {"dry_run": dry_run, "created": made, "updated": updated, "unchanged": unchanged, "diff": diff}
    return _encode(answer)


def start(text: str) -> str | int:
    """The start of a subscription as JSON: an id is a number."""
    return int(text) if text.isdigit() else text


def shown_settings(settings: Settings) -> dict[str, Any]:
    """A subscription's settings in their order, without the secret and without settings that are not set."""
    shown = {name: settings[name] for name in SUBSCRIPTION_SETTINGS if settings.get(name) is not None}
    if "push" in shown:
        shown["push"] = {"url": shown["push"]["url"]}
    return {name: plain(value) for name, value in shown.items()}


def _policy(policy: Policy) -> dict[str, Any]:
    return {
        "pattern": policy.pattern,
        "applies_to": policy.applies_to.value,
        "priority": policy.priority,
        "definition": _policy_settings(policy.applies_to, policy.definition),
    }


def _policy_settings(applies_to: AppliesTo, settings: Settings) -> dict[str, Any]:
    return nested(settings) if applies_to is AppliesTo.CHANNELS else shown_settings(settings)


def _side(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """One side of a difference, in the JSON form of that kind of thing."""
    if kind == "channel":
        return nested(settings)
    if kind == "policy":
        definition = _policy_settings(AppliesTo(settings["applies_to"]), settings["definition"])
        return {**settings, "definition": definition}
    others = {name: settings[name] for name in ("channels", "start", "paused") if name in settings}
    if "start" in others:
        others["start"] = start(others["start"])
    return {**others, **shown_settings(settings)}
