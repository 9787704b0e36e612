"""Routes for API keys, and for who asks."""

from __future__ import annotations

import logging
import re
import secrets
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.http.body import read_json
from app.http.principals import Principals
from app.http.request import NO_CONTENT, Answer, Plain
from app.message import limits
from app.message.grants import MAX_GRANTS, GrantDocument, grant_documents, read_grants
from app.message.refusals import decode
from app.message.times import rfc3339
from subscriptions.domain import key as domain
from subscriptions.domain.errors import Code, GaplessError, invalid
from subscriptions.domain.key import SECRET_BYTES, digest_of, written
from subscriptions.domain.model import microseconds
from subscriptions.domain.names import MAX_NAME_CHARACTERS, check_channel
from subscriptions.domain.principal import Grant, Principal
from subscriptions.ports import KeyPort

audit = logging.getLogger("gapless.audit")
KEY_ID: Final = re.compile(r"[a-z0-9]{12}")
_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_Name = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARACTERS, pattern=r"^[^\x00-\x1f\x7f]+$")]
_Moment = Annotated[datetime, Meta(extra_json_schema={"maxLength": 64})]
_LATEST_US: Final = microseconds(datetime(9999, 12, 31, tzinfo=UTC))
"""A key that ends later ends then: the last microsecond of that year is read back as infinity."""


class KeyRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A key to make. `operator`: an admin of all namespaces. `namespace` is the caller's, unless an operator
    names another."""

    name: _Name
    grants: Annotated[list[GrantDocument], Meta(min_length=1, max_length=MAX_GRANTS)] | UnsetType = UNSET
    expires_at: _Moment | UnsetType | None = UNSET
    namespace: limits.Name | UnsetType = UNSET
    operator: bool = False


class Key(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A key without its secret. No grants: everything in its namespace."""

    id: str
    name: str
    namespace: str
    grants: list[GrantDocument] | None = None
    operator: bool = False
    created_at: str
    expires_at: str | None = None


class NewKey(Key, kw_only=True):
    """A key as it is told once."""

    key: str


class Keys(msgspec.Struct):
    """All keys of a namespace, the oldest first; of all namespaces for an operator."""

    keys: list[Key]


class Who(msgspec.Struct, kw_only=True):
    """Who asks. `grants` null: everything in the namespace."""

    subject: str | None
    namespace: str
    grants: list[GrantDocument] | None
    operator: bool
    expires_at: str | None


async def whoami(request: Plain) -> Answer:
    """Tell who asks, and what they may do."""
    who = request.principal
    expires_at = None if who.expires_at_us is None else _time(who.expires_at_us)
    found = Who(
        subject=who.subject,
        namespace=who.namespace,
        grants=grant_documents(who.grants),
        operator=who.operator,
        expires_at=expires_at,
    )
    return Answer(msgspec.json.encode(found))


async def create_key(request: Plain, keys: KeyPort, principals: Principals) -> Answer:
    """Make a key. It is told once, in this answer. With the first one, every request needs a credential, for
    good. Nobody can grant more than they were granted, nor for longer."""
    asked, who = decode(await read_json(request), KeyRequest), request.principal
    named = asked.namespace
    namespace = who.namespace if isinstance(named, UnsetType) else check_namespace(named)
    if asked.operator or namespace != who.namespace:
        who.require_operator()
    grants = None if isinstance(asked.grants, UnsetType) else read_grants(asked.grants)
    if grants is None and not asked.operator:
        raise invalid("grants", "must say what the key may do")
    expires_us = _expiry(asked.expires_at)
    if not who.operator:
        who.require_grants(grants or ())
        if who.expires_at_us is not None and (expires_us is None or expires_us > who.expires_at_us):
            detail = f"expires_at: must be {_time(who.expires_at_us)} or before, when your own key expires"
            raise GaplessError(Code.FORBIDDEN, detail)
    key, secret = new_key(namespace, asked.name, grants, operator=asked.operator, expires_us=expires_us)
    made_us = await keys.put(key)
    await principals.look()
    audit.info("key %s (%s) of %s was made by %s", key.id, asked.name, namespace, who.subject)
    shown = _shown(key, made_us)
    told = NewKey(**{n: getattr(shown, n) for n in shown.__struct_fields__}, key=written(key.id, secret))
    return Answer(msgspec.json.encode(told), 201, ((b"cache-control", b"no-store"),))


async def list_keys(request: Plain, keys: KeyPort) -> Answer:
    """List the keys of the namespace, or of all for an operator; never what they are."""
    found = await _seen(request.principal, keys)
    return Answer(msgspec.json.encode(Keys([_shown(key, key.created_at_us) for key in found])))


async def _seen(who: Principal, keys: KeyPort) -> list[domain.Key]:
    """All keys of the namespace; of all namespaces for an operator."""
    found = await keys.credentials()
    assert found is not None, "no version was named"
    return [key for key in found.keys if who.operator or key.namespace == who.namespace]


async def revoke_key(request: Plain, keys: KeyPort, principals: Principals) -> Answer:
    """Revoke a key: it is refused from now on, within seconds by every process, and its streams end. That of
    an operator is for operators."""
    who = request.principal
    there = KEY_ID.fullmatch(request.name) is not None
    if any(key.id == request.name and key.operator for key in await _seen(who, keys)):
        who.require_operator()
    if not there or not await keys.delete(None if who.operator else who.namespace, request.name):
        raise GaplessError(Code.NOT_FOUND, f"key {request.name} does not exist")
    await principals.look()
    audit.info("key %s was revoked by %s", request.name, who.subject)
    return NO_CONTENT


def new_key(
    namespace: str, name: str, grants: tuple[Grant, ...] | None, *, operator: bool, expires_us: int | None
) -> tuple[domain.Key, bytes]:
    """A new key, and its secret, which nobody keeps. Raises `invalid_request`."""
    if not name.isprintable() or not 1 <= len(name) <= MAX_NAME_CHARACTERS:
        raise invalid("name", f"must be 1 to {MAX_NAME_CHARACTERS} printable characters")
    secret = secrets.token_bytes(SECRET_BYTES)
    id_ = "".join(secrets.choice(_ALPHABET) for _ in range(12))
    return domain.Key(id_, namespace, name, digest_of(secret), grants, operator, 0, expires_us), secret


def as_document(key: domain.Key) -> dict[str, Any]:
    """A key as JSON, without its secret."""
    found: dict[str, Any] = msgspec.to_builtins(_shown(key, key.created_at_us))
    return found


def check_namespace(name: str) -> str:
    """The name of a namespace. Raises `invalid_request`."""
    return check_channel(name, "namespace")


def _expiry(expires_at: datetime | UnsetType | None) -> int | None:
    if not isinstance(expires_at, datetime):
        return None
    if expires_at.tzinfo is None:
        raise invalid("expires_at", "must have a time zone, such as Z")
    if expires_at <= datetime.now(UTC):
        raise invalid("expires_at", "is in the past")
    return min(microseconds(expires_at), _LATEST_US)


def _shown(key: domain.Key, created_us: int) -> Key:
    return Key(
        id=key.id,
        name=key.name,
        namespace=key.namespace,
        grants=grant_documents(key.grants),
        operator=key.operator,
        created_at=_time(created_us),
        expires_at=None if key.expires_at_us is None else _time(key.expires_at_us),
    )


def _time(at_us: int) -> str:
    return rfc3339(at_us).decode()
