"""Which settings are in force: own ones, then those of policies, then the defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from subscriptions.domain.delivery import AppliesTo, Policy
from subscriptions.domain.pattern import compile_pattern

Found = tuple[dict[str, Any], dict[str, str]]
"""Settings, and where each is from."""


def in_force(
    policies: Iterable[Policy],
    about: AppliesTo,
    name: str,
    own: Mapping[str, Any],
    defaults: Mapping[str, Any],
) -> Found:
    """Each setting by itself: of policies the highest priority has it, then the lesser name."""
    ranked = sorted(policies, key=lambda policy: (-policy.priority, policy.name))
    given = [("own", own)]
    given += [
        (f"policy:{policy.name}", policy.definition)
        for policy in ranked
        if policy.applies_to is about and compile_pattern(policy.pattern).matches(name)
    ]
    given.append(("default", defaults))
    settings: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for origin, members in given:
        for setting, value in members.items():
            if value is not None and setting not in settings:
                settings[setting], origins[setting] = value, origin
    return settings, origins


def changed(own: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Own settings after a change: None clears one."""
    return {setting: value for setting, value in {**own, **patch}.items() if value is not None}
