"""What a definition makes the service do later needs the grants of whoever defines it.

A subscription reads its channels, and publishes dead letters; a policy does the same to all that its pattern
matches. Everything here raises `forbidden`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from app.api.settings import dead_letters_of
from subscriptions.domain.delivery import AppliesTo, Definitions, Policy, Settings
from subscriptions.domain.principal import Action, Noun, Principal

_MANAGE = (Action.MANAGE,)


def require_subscription(who: Principal, name: str, channels: Sequence[str], settings: Settings) -> None:
    """Reading these channels, and publishing where the settings route dead letters. `name`: that of the
    subscription, or a pattern of names."""
    who.require((Action.SUBSCRIBE,), Noun.CHANNEL, channels)
    template = (settings.get("dead_letter") or {}).get("channel")
    if template is not None:
        who.require((Action.PUBLISH,), Noun.CHANNEL, (dead_letters_of(template, name),))


def require_policy(who: Principal, policy: Policy) -> None:
    """Managing all that the policy applies to, and doing what it makes them do."""
    who.require(_MANAGE, _noun(policy), (policy.pattern,))
    require_subscription(who, policy.pattern, (), policy.definition)


def require_management(who: Principal, policy: Policy) -> None:
    """Managing all that the policy applies to."""
    who.require(_MANAGE, _noun(policy), (policy.pattern,))


def managed(who: Principal, policies: Iterable[Policy]) -> list[Policy]:
    """Those of which everything may be managed."""
    return [policy for policy in policies if who.may(_MANAGE, _noun(policy), policy.pattern)]


def require_definitions(who: Principal, wanted: Definitions, there: Iterable[Policy]) -> None:
    """Managing everything that is defined, and doing what it makes the service do. `there`: the policies that
    there are; one of them may be replaced."""
    who.require(_MANAGE, Noun.CHANNEL, (channel.name for channel in wanted.channels))
    who.require(_MANAGE, Noun.SUBSCRIPTION, (each.name for each in wanted.subscriptions))
    for each in wanted.subscriptions:
        require_subscription(who, each.name, each.channels, each.settings)
    names = set()
    for policy in wanted.policies:
        require_policy(who, policy)
        names.add(policy.name)
    for policy in there:
        if policy.name in names:
            require_management(who, policy)


def narrowed(who: Principal, defined: Definitions) -> Definitions:
    """What of the definitions may be managed. Raises nothing."""
    return replace(
        defined,
        channels=tuple(c for c in defined.channels if who.may(_MANAGE, Noun.CHANNEL, c.name)),
        subscriptions=tuple(s for s in defined.subscriptions if who.may(_MANAGE, Noun.SUBSCRIPTION, s.name)),
        policies=tuple(managed(who, defined.policies)),
    )


def _noun(policy: Policy) -> Noun:
    return Noun.CHANNEL if policy.applies_to is AppliesTo.CHANNELS else Noun.SUBSCRIPTION
