"""Routes for namespaces, for operators."""

from __future__ import annotations

import logging
import time
from typing import Annotated, Final

import msgspec
from msgspec import Meta, UnsetType

from app.api.operate import Readiness
from app.http.body import read_json
from app.http.request import NO_CONTENT, Answer, Plain
from app.message.refusals import decode
from subscriptions.domain import namespace as domain
from subscriptions.domain.errors import Code, GaplessError, unavailable
from subscriptions.engine.gate import Gate
from subscriptions.ports import NamespacePort

audit = logging.getLogger("gapless.audit")
REMOVE_S: Final = 20.0
"""A request removes things for this long; one that comes again goes on."""
_LIMIT_NAME = Annotated[str, Meta(pattern="^[a-z][a-z0-9_]{0,63}$")]
_Limits = Annotated[dict[_LIMIT_NAME, Annotated[float, Meta(ge=0, lt=2**53)]], Meta(max_length=64)]


class NamespaceRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Limits of a namespace by name, such as `streams`. They are stored and shown; nothing enforces them
    yet."""

    limits: _Limits | UnsetType = msgspec.UNSET


class Namespace(msgspec.Struct):
    """A namespace."""

    name: str
    limits: dict[str, float]


async def get_namespace(request: Plain, namespaces: NamespacePort) -> Answer:
    """Get one namespace."""
    return Answer(_encode(await namespaces.get(request.name)))


async def put_namespace(request: Plain, namespaces: NamespacePort, readiness: Readiness) -> Answer:
    """Make a namespace, or set the limits of one. This process serves it at once, every other a second
    later."""
    asked = decode(await read_json(request), NamespaceRequest)
    limits = None if isinstance(asked.limits, UnsetType) else asked.limits
    made = await namespaces.put(request.name, limits)
    if made:
        await readiness.serve(request.name)
        audit.info("namespace %s was made by %s", request.name, request.principal.subject)
    return Answer(_encode(await namespaces.get(request.name)), 201 if made else 200)


async def delete_namespace(request: Plain, namespaces: NamespacePort, gate: Gate) -> Answer:
    """Delete a namespace with its keys and everything in it. If that takes too long, the answer is 503, and
    the same request goes on."""
    name, until = request.name, time.monotonic() + REMOVE_S
    if name == request.namespace:
        raise GaplessError(Code.CONFLICT, f"namespace {name} is your own, with the key that you use")
    gone = False
    while not gone:
        if time.monotonic() > until:
            raise unavailable(f"namespace {name} is emptied in part; send the same request again")
        _, gone = await namespaces.remove(name)
    gate.close([name])
    audit.info("namespace %s was removed by %s", name, request.principal.subject)
    return NO_CONTENT


def _encode(found: domain.Namespace) -> bytes:
    limits = {name: int(value) if value == int(value) else value for name, value in found.limits.items()}
    return msgspec.json.encode(Namespace(found.name, limits))
