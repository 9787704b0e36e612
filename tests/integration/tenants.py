"""A service with two namespaces, of which one has objects, and keys and tokens that are good and bad."""

from __future__ import annotations

import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import httpx
import jwt

from app.api.keys import new_key
from subscriptions.domain.key import written
from subscriptions.domain.principal import Action
from tests.integration.asking import Named
from tests.integration.test_keys import bearer, make
from tests.integration.test_tickets import SECRET, token
from tests.patience import eventually, http_client

FOREIGN = 3
"""So many names of each kind exist in the other namespace."""
CONTEXT = ssl.create_default_context()
"""To make one takes long, and nothing uses it."""
REFUSALS = 50
"""An address that sends more bad credentials is slowed down, so each address sends at most so many."""
STORED = """
select json_build_object(
    'channels', (select count(*) from gapless.channels), 'messages', (select count(*) from gapless.messages),
    'subscriptions', (select count(*) from gapless.subscriptions),
    'deliveries', (select md5(json_agg(d)::text) from gapless.deliveries d),
    'dead_letters', (select md5(json_agg(d)::text) from gapless.dead_letters d),
    'policies', (select count(*) from gapless.policies), 'keys', (select count(*) from gapless.keys),
    'namespaces', (select count(*) from gapless.namespaces),
    'scheduled', (select count(*) from gapless.scheduled))::text
"""
READ = (
    "/v1/definitions",
    "/v1/channels",
    "/v1/subscriptions",
    "/v1/policies",
    "/v1/scheduled",
    "/v1/dead-letters",
    "/v1/keys",
    *(f"/v1/channels/held-{n}/messages" for n in range(FOREIGN)),
    *(f"/v1/subscriptions/held-{n}/messages" for n in range(FOREIGN)),
)


def grants(*actions: Action, on: str = ">") -> list[dict[str, Any]]:
    """These actions on channels and subscriptions of a pattern."""
    return [{"actions": [str(one) for one in actions], "channels": [on], "subscriptions": [on]}]


@dataclass(frozen=True, slots=True)
class Tenants:
    """`default` has objects, and `acme` has none. Keys: `root` of an operator, `ours` for everything in
    `default`, `theirs` for everything in `acme`."""

    url: str
    owner_url: str
    root: str
    ours: str
    theirs: str
    held: tuple[Named, ...]
    bad: dict[str, list[str]]
    """Values of the header Authorization that are not good, by what is wrong."""

    async def key(self, *actions: Action, on: str = ">") -> str:
        """A key in `default`."""
        async with http_client(self.url) as client:
            return str((await make(client, "some", grants(*actions, on=on), self.root))["key"])

    async def stored(self) -> str:
        """What is stored in all namespaces."""
        async with session(self.owner_url) as owner:
            return str(await owner.fetchval(STORED))

    async def objects(self) -> dict[str, Any]:
        """All that `default` has, as its holder reads it."""
        async with http_client(self.url, headers=bearer(self.ours)) as client:
            return {path: (await client.get(path)).json() for path in READ}


@asynccontextmanager
async def session(url: str) -> AsyncIterator[asyncpg.Connection]:
    """A session of the database."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


def address(number: int) -> httpx.AsyncHTTPTransport:
    """Connections from another address of this machine."""
    return httpx.AsyncHTTPTransport(CONTEXT, local_address=f"127.0.0.{2 + number % 250}")


async def tenants(url: str, owner_url: str) -> Tenants:
    """Fill a service that has `GAPLESS_JWT_KEYS`."""
    async with session(owner_url) as owner, http_client(url) as client:
        root = await _operator(owner)
        await client.put("/v1/namespaces/acme", headers=bearer(root))
        ours = (await make(client, "ours", grants(*Action), root))["key"]
        theirs = (await make(client, "theirs", grants(*Action), root, namespace="acme"))["key"]
        held = tuple([await _hold(client, number, ours, root) for number in range(FOREIGN)])
        bad = await _bad(client, owner, root, ours)
    return Tenants(url, owner_url, root, ours, theirs, held, bad)


async def _operator(owner: asyncpg.Connection) -> str:
    key, secret = new_key("default", "root", None, operator=True, expires_us=None)
    namespace = await owner.fetchval("select gapless.ensure_namespace('default')")
    made = "select gapless.create_key($1, $2, 'root', $3, null, true, null)"
    await owner.fetchval(made, key.id, namespace, key.digest)
    return written(key.id, secret)


async def _hold(client: httpx.AsyncClient, number: int, ours: str, root: str) -> Named:
    """A channel, a subscription, a policy and a key of the same name, with a dead letter and a lease."""
    name, mine = f"held-{number}", bearer(ours)
    kept = {"channels": [name], "max_deliver": 1, "ack_wait": 3600}
    await client.put(f"/v1/subscriptions/{name}", json=kept, headers=mine)
    rule = {"pattern": name, "applies_to": "channels", "definition": {"retention": {"max_age": 86400}}}
    assert (await client.put(f"/v1/policies/{name}", json=rule, headers=mine)).status_code == 201
    messages = f"/v1/channels/{name}/messages"
    sent = await client.post(messages, json=[{"data": name}] * 4, headers=mine)
    later = await client.post(messages, json={"data": name, "delay": 3600}, headers=mine)
    pull = f"/v1/subscriptions/{name}/pull"
    pulled = (await client.post(pull, json={"max": 2, "wait": 20}, headers=mine)).json()["deliveries"]
    receipts = [each["receipt"] for each in pulled]
    refused = await client.post("/v1/nack", json={"receipts": receipts[:1]}, headers=mine)
    assert refused.status_code == 200, refused.text

    async def dead() -> Any:
        listed = await client.get("/v1/dead-letters", params={"subscription": name}, headers=mine)
        return listed.json()["dead_letters"]

    (letter,) = await eventually(dead)
    key = await make(client, name, grants(Action.PUBLISH), root)
    message = sent.json()["messages"][0]["id"]
    return Named(name, message, letter["id"], later.json()["scheduled_id"], receipts[1], key["id"])


async def _bad(
    client: httpx.AsyncClient, owner: asyncpg.Connection, root: str, ours: str
) -> dict[str, list[str]]:
    everything = grants(*(action for action in Action if action is not Action.ADMIN))
    gone = await make(client, "gone", everything, root)
    await client.delete(f"/v1/keys/{gone['id']}", headers=bearer(root))
    over = await make(client, "over", everything, root, expires_at="2100-01-01T00:00:00Z")
    await owner.execute(
        "update gapless.keys set expires_at = now() - interval '1 min' where id = $1", over["id"]
    )
    await owner.execute("update gapless.log set keys_version = keys_version + 1")

    async def expired() -> bool:
        return (await client.get("/v1/whoami", headers=bearer(over["key"]))).status_code == 401

    await eventually(expired)
    mine = {"grants": everything}
    forged = jwt.encode({"sub": "ann", "exp": 4_000_000_000, **mine}, b"x" * 32, "HS256", {"kid": "one"})
    unsigned = jwt.encode({"sub": "ann", "exp": 4_000_000_000, **mine}, "", "none")
    bearers = {
        "no key": "abc",
        "unknown": f"gapless_{'z' * 12}_{secrets.token_hex(32)}",
        "another secret": f"{ours[:21]}{secrets.token_hex(32)}",
        "revoked": gone["key"],
        "expired": over["key"],
        "expired token": token(-1, **mine),
        "too long a token": token(10**6, **mine),
        "forged token": forged,
        "unsigned token": unsigned,
        "another kid": jwt.encode({"sub": "ann", **mine}, SECRET, "HS256", {"kid": "two"}),
    }
    said = {name: [f"Bearer {text}"] for name, text in bearers.items()}
    return {
        **said,
        "nothing": [],
        "another scheme": [f"Basic {ours}"],
        "empty": ["Bearer"],
        "twice": [f"Bearer {ours}"] * 2,
    }


@asynccontextmanager
async def addressed(url: str, number: int) -> AsyncIterator[httpx.AsyncClient]:
    """A client at an address of its own."""
    async with http_client(url, transport=address(number)) as client:
        yield client
