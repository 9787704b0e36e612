"""Routes for policies: settings for everything that a pattern matches."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.api.answers import stored
from app.api.channels import ChannelSettings, channel_values, nested
from app.api.granted import managed, require_management, require_policy
from app.api.settings import SubscriptionSettings, refuse_other_name, shown_settings, subscription_values
from app.http.body import read_json
from app.http.request import NO_CONTENT, Answer, Plain
from app.message import limits
from app.message.refusals import decode
from app.message.tags import bound, etag, if_absent, if_match
from subscriptions.domain import delivery
from subscriptions.domain.delivery import AppliesTo
from subscriptions.domain.errors import Code, GaplessError, invalid
from subscriptions.domain.pattern import check_pattern
from subscriptions.engine.durable.announcing import AnnouncingPolicies

MAX_PRIORITY: Final = 1_000_000
_POLICY: Final = {
    "anyOf": [
        {"$ref": f"#/components/schemas/{form.__name__}"} for form in (ChannelSettings, SubscriptionSettings)
    ],
    "minProperties": 1,
}
_Priority = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]


class PolicyDefinition(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Settings for everything that a pattern matches."""

    name: limits.Name | UnsetType | None = UNSET
    pattern: limits.Name
    applies_to: Literal["channels", "subscriptions"]
    priority: _Priority | UnsetType | None = UNSET
    definition: Annotated[msgspec.Raw, Meta(extra_json_schema=_POLICY)]


def parse_policy(name: str, raw: bytes) -> delivery.Policy:
    """The body of a PUT."""
    body = decode(raw, PolicyDefinition)
    refuse_other_name(body.name, name)
    return policy_of(name, body)


def policy_of(name: str, body: PolicyDefinition) -> delivery.Policy:
    applies_to = AppliesTo(body.applies_to)
    try:
        definition = _settings_of(applies_to, bytes(body.definition))
    except GaplessError as error:
        raise _below(error, "definition") from None
    if not definition:
        raise invalid("definition", "sets nothing")
    priority = body.priority if isinstance(body.priority, int) else 0
    return delivery.Policy(name, check_pattern(body.pattern, "pattern"), applies_to, priority, definition)


def _settings_of(applies_to: AppliesTo, raw: bytes) -> delivery.Settings:
    if applies_to is AppliesTo.CHANNELS:
        values = channel_values(decode(raw, ChannelSettings))
    else:
        values = subscription_values(decode(raw, SubscriptionSettings))
    return {name: value for name, value in values if value is not None}


def _below(error: GaplessError, place: str) -> GaplessError:
    """The same error for a part of a body; `place` is the path of that part."""
    if [e.field for e in error.errors] == ["body"]:
        return invalid(place, error.errors[0].message)
    return limits.within(error, place)


class Policy(PolicyDefinition, kw_only=True, forbid_unknown_fields=False):
    """Settings for everything that its pattern matches."""

    name: str
    priority: int


class Policies(msgspec.Struct):
    """All policies."""

    policies: list[Policy]


async def list_policies(request: Plain, policies: AnnouncingPolicies) -> Answer:
    """List the policies of which everything may be managed, by name."""
    found = managed(request.principal, await policies.port.all(request.namespace))
    return Answer(msgspec.json.encode(Policies([stored(encode_policy(each)) for each in found])))


async def get_policy(request: Plain, policies: AnnouncingPolicies) -> Answer:
    """Get one policy."""
    found = await policies.port.get(request.namespace, request.name)
    require_management(request.principal, found)
    return Answer(encode_policy(found), headers=etag(found.tag))


async def put_policy(request: Plain, policies: AnnouncingPolicies) -> Answer:
    """Create or replace a policy. It is in force for every decision after the answer."""
    tags, absent = if_match(request.headers), if_absent(request.headers)
    policy = parse_policy(request.name, await read_json(request))
    require_policy(request.principal, policy)
    there = await _there(request, policies)
    if there is not None:
        tags = bound(tags, there.tag)
    elif request.principal.grants is not None:
        absent = absent or tags is None
    was_made, tag = await policies.put(request.namespace, policy, if_match=tags, if_absent=absent)
    return Answer(encode_policy(policy), 201 if was_made else 200, etag(tag))


async def delete_policy(request: Plain, policies: AnnouncingPolicies) -> Answer:
    """Delete a policy. Its settings fall back to other policies or the defaults."""
    tags = if_match(request.headers)
    there = await _there(request, policies)
    if there is not None:
        tags = bound(tags, there.tag)
    await policies.delete(request.namespace, request.name, if_match=tags)
    return NO_CONTENT


async def _there(request: Plain, policies: AnnouncingPolicies) -> delivery.Policy | None:
    """The policy that is about to be changed, for those who may not change every one. Raises `forbidden`."""
    if request.principal.grants is None:
        return None
    try:
        found = await policies.port.get(request.namespace, request.name)
    except GaplessError as error:
        if error.code is Code.NOT_FOUND:
            return None
        raise
    require_management(request.principal, found)
    return found


def encode_policy(policy: delivery.Policy) -> bytes:
    """One policy."""
    return msgspec.json.encode(Policy(name=policy.name, **shown_policy(policy)))


def shown_policy(policy: delivery.Policy) -> dict[str, Any]:
    return {
        "pattern": policy.pattern,
        "applies_to": policy.applies_to.value,
        "priority": policy.priority,
        "definition": shown_definition(policy.applies_to, policy.definition),
    }


def shown_definition(applies_to: AppliesTo, settings: delivery.Settings) -> dict[str, Any]:
    return nested(settings) if applies_to is AppliesTo.CHANNELS else shown_settings(settings)
