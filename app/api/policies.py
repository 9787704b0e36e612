"""Routes for policies: settings for everything that a pattern matches."""

from __future__ import annotations

from app.api.definition_bodies import parse_policy
from app.api.definition_encoding import encode_policies, encode_policy
from app.http.body import read_json
from app.http.request import NO_CONTENT, Answer, Plain
from app.message.tags import etag, if_absent, if_match
from subscriptions.engine.durable.announcing import AnnouncingPolicies


async def list_policies(request: Plain, policies: AnnouncingPolicies) -> Answer:
    """List all policies, by name."""
    return Answer(encode_policies(await policies.port.all(request.namespace)))


async def get_policy(request: Plain, policies: AnnouncingPolicies) -> Answer:
    """Get one policy."""
    found = await policies.port.get(request.namespace, request.name)
    return Answer(encode_policy(found), headers=etag(found.tag))


async def put_policy(request: Plain, policies: AnnouncingPolicies) -> Answer:
    """Create or replace a policy. It is in force for every decision after the answer."""
    tags, absent = if_match(request.headers), if_absent(request.headers)
    policy = parse_policy(request.name, await read_json(request))
    was_made, tag = await policies.put(request.namespace, policy, if_match=tags, if_absent=absent)
    return Answer(encode_policy(policy), 201 if was_made else 200, etag(tag))


async def delete_policy(request: Plain, policies: AnnouncingPolicies) -> Answer:
    """Delete a policy. Its settings fall back to other policies or the defaults."""
    tags = if_match(request.headers)
    await policies.delete(request.namespace, request.name, if_match=tags)
    return NO_CONTENT
