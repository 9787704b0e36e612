"""Schemas of durable subscriptions for the OpenAPI document, and the parts of operations that name them."""

from __future__ import annotations

from typing import Any, Final

from app.wire import consuming, dead_letters, settings
from subscriptions.domain.delivery import MAX_CHANNELS

JSON: Final = "application/json"
Responses = dict[int | str, dict[str, Any]]


def schema(name: str) -> dict[str, str]:
    """A reference to a shared schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def answers(description: str, content: dict[str, Any], status: int = 200) -> Responses:
    """One answer of an operation, as FastAPI takes it."""
    return {status: {"description": description, "content": {JSON: {"schema": content}}}}


def takes(name: str, *, required: bool = True) -> dict[str, Any]:
    """A request body of a shared schema."""
    return {"requestBody": {"required": required, "content": {JSON: {"schema": schema(name)}}}}


def _closed(properties: dict[str, Any], required: str = "") -> dict[str, Any]:
    """What is sent: nothing else is let in."""
    return {
        "type": "object",
        "required": required.split(),
        "properties": properties,
        "additionalProperties": False,
    }


def _open(properties: dict[str, Any], required: str = "") -> dict[str, Any]:
    """What is answered: more may come with a later version."""
    return {"type": "object", "required": required.split(), "properties": properties}


def _list(items: dict[str, Any], **bounds: int) -> dict[str, Any]:
    return {"type": "array", "items": items, **bounds}


def _or_null(of: dict[str, Any]) -> dict[str, Any]:
    return {**of, "type": [of["type"], "null"]}


def _page(name: str, items: str, cursor: dict[str, Any]) -> dict[str, Any]:
    properties = {name: _list(schema(items)), "has_more": {"type": "boolean"}, "cursor": cursor}
    return _open(properties, f"{name} has_more cursor")


_STRING: Final = {"type": "string"}
_BOOLEAN: Final = {"type": "boolean"}
_TIME: Final = {"type": "string", "format": "date-time"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_NAME: Final = {"type": "string", "minLength": 1, "maxLength": 255}
_START: Final = {
    "description": "earliest, latest, an id to begin after, or a time: RFC 3339, or 10m, 2h, 1d ago.",
    "type": ["string", "integer"],
    "minimum": 0,
    "examples": ["earliest"],
}
_CHANNELS: Final = _list(_NAME, minItems=1, maxItems=MAX_CHANNELS)
_FILTER: Final = {
    **_closed({"types": _list(_STRING, maxItems=128), "keys": _list(_STRING, maxItems=128)}),
    "type": ["object", "null"],
}
_DEAD_LETTER: Final = {
    **_closed({"channel": {"type": ["string", "null"], "maxLength": 255}}, "channel"),
    "type": ["object", "null"],
    "description": "A channel, or a template with {channel} and {subscription}; null: none.",
}
_TTL: Final = {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 315360000}
_SETTINGS: Final[dict[str, Any]] = {
    "ack_wait": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": settings.MAX_ACK_WAIT_S},
    "max_deliver": {"type": ["integer", "null"], "minimum": 0, "maximum": settings.MAX_DELIVER},
    "backoff": {
        "type": ["array", "null"],
        "items": {"type": "number", "minimum": 0, "maximum": settings.MAX_BACKOFF_S},
        "maxItems": settings.MAX_BACKOFFS,
    },
    "max_in_flight": {"type": ["integer", "null"], "minimum": 1, "maximum": settings.MAX_IN_FLIGHT},
    "ordering": {"enum": ["key", "channel", "none", None]},
    "message_ttl": _TTL,
    "max_backlog": {"type": ["integer", "null"], "minimum": 1, "maximum": settings.MAX_COUNT},
    "filter": _FILTER,
    "dead_letter": _DEAD_LETTER,
    "retain": {"type": ["boolean", "null"], "description": "Whether retention waits for it."},
    "expires": {**_TTL, "description": "Seconds without use after which it is removed."},
}
_PUSH: Final = {
    **_closed({"url": _STRING, "secret": {"type": "string", "pattern": "^whsec_"}}, "url secret"),
    "type": ["object", "null"],
}
_CHANGED_PUSH: Final = {**_PUSH, "required": ["url"]}
_RETENTION: Final = {
    **_closed(
        {
            "max_age": {"type": ["integer", "null"], "minimum": 1, "maximum": settings.MAX_AGE_S},
            "max_messages": {"type": ["integer", "null"], "minimum": 1, "maximum": settings.MAX_COUNT},
        }
    ),
    "type": ["object", "null"],
}
_CHANNEL_SETTINGS: Final = {"retention": _RETENTION, "message_ttl": _TTL}
_ORIGINS: Final = {
    "type": "object",
    "additionalProperties": _STRING,
    "description": "Where each setting comes from: own, default or policy:<name>.",
}
_STATS: Final = _open(
    {
        **dict.fromkeys(
            (
                "lag",
                "in_flight",
                "redelivered",
                "dead_letters",
                "delayed",
                "waiting",
                "acked",
                "dead_lettered",
                "removed_by_retention",
                "purged",
                "cursor",
            ),
            _COUNT,
        ),
        "oldest_unacked_seconds": {"type": ["number", "null"], "minimum": 0},
    }
)
_REASON: Final = {"enum": ["rejected", "expired", "max_deliver", "max_backlog", "hops"]}
_POLICY: Final[dict[str, Any]] = {
    "name": _NAME,
    "pattern": _NAME,
    "applies_to": {"enum": ["channels", "subscriptions"]},
    "priority": {"type": "integer", "minimum": -1_000_000, "maximum": 1_000_000, "default": 0},
    "definition": {
        "anyOf": [
            {**_closed(_CHANNEL_SETTINGS), "minProperties": 1},
            {**_closed(_SETTINGS), "minProperties": 1},
        ]
    },
}
_RECEIPTS: Final = _list(_STRING, minItems=1, maxItems=consuming.MAX_RECEIPTS)

DEFINITIONS: Final[dict[str, Any]] = {
    "SubscriptionDefinition": _closed(
        {"name": _NAME, "channels": _CHANNELS, "start": _START, **_SETTINGS, "push": _PUSH}, "channels"
    ),
    "SubscriptionChange": _closed({"name": _NAME, "channels": _CHANNELS, **_SETTINGS, "push": _CHANGED_PUSH}),
    "Binding": _closed({"channels": _CHANNELS}, "channels"),
    "Seek": _closed({"to": _START}, "to"),
    "Subscription": _open(
        {
            "name": _NAME,
            "channels": _CHANNELS,
            "start": _START,
            **_SETTINGS,
            "push": _open({"url": _STRING}, "url"),
            "paused": _BOOLEAN,
            "created_at": _TIME,
            "origins": _ORIGINS,
            "stats": _STATS,
            "before": {"anyOf": [_STATS, {"type": "null"}]},
            "dry_run": _BOOLEAN,
        },
        "name channels start ack_wait max_deliver backoff max_in_flight ordering paused created_at origins",
    ),
    "SubscriptionLength": _open(
        {"lag": _COUNT, "in_flight": _COUNT, "exact": _BOOLEAN}, "lag in_flight exact"
    ),
    "SubscriptionPage": _page("subscriptions", "Subscription", {"type": ["string", "null"]}),
    "PolicyDefinition": _closed(_POLICY, "pattern applies_to definition"),
    "Policy": _open(_POLICY, "name pattern applies_to priority definition"),
    "Policies": _open({"policies": _list(schema("Policy"))}, "policies"),
    "Definitions": _closed(
        {
            "version": {"const": 1},
            "channels": _list(_closed({"name": _NAME, **_CHANNEL_SETTINGS}, "name")),
            "subscriptions": _list(
                _closed(
                    {
                        "name": _NAME,
                        "channels": _CHANNELS,
                        "start": _START,
                        **_SETTINGS,
                        "push": _CHANGED_PUSH,
                        "paused": _BOOLEAN,
                    },
                    "name channels",
                )
            ),
            "policies": _list(_closed(_POLICY, "name pattern applies_to definition")),
        }
    ),
    "Changes": _open(
        {
            "dry_run": _BOOLEAN,
            "created": _list(_STRING),
            "updated": _list(_STRING),
            "unchanged": _COUNT,
            "diff": _list(
                _open(
                    {
                        "kind": {"enum": ["channel", "subscription", "policy"]},
                        "name": _NAME,
                        "from": {"type": ["object", "null"]},
                        "to": {"type": "object"},
                    },
                    "kind name from to",
                )
            ),
        },
        "dry_run created updated unchanged diff",
    ),
}

DELIVERIES: Final[dict[str, Any]] = {
    "Pull": _closed(
        {
            "max": {"type": ["integer", "null"], "minimum": 1, "maximum": consuming.MAX_PULL, "default": 1},
            "wait": {"type": ["number", "null"], "minimum": 0, "maximum": consuming.MAX_WAIT_S, "default": 0},
        }
    ),
    "Delivery": _open(
        {"receipt": _STRING, "attempt": _COUNT, "deadline": _TIME, "message": schema("Message")},
        "receipt attempt deadline message",
    ),
    "Deliveries": _open({"deliveries": _list(schema("Delivery"))}, "deliveries"),
    "Outstanding": _open(
        {
            "state": {"enum": ["ready", "waiting", "delayed", "leased"]},
            "attempt": _COUNT,
            "deadline": _TIME,
            "due_at": _TIME,
            "member": _STRING,
            "waits_for": _COUNT,
            "last_error": _STRING,
            "message": schema("Message"),
        },
        "state attempt message",
    ),
    "OutstandingPage": _open(
        {
            "messages": _list(schema("Outstanding")),
            "has_more": _BOOLEAN,
            "cursor": _COUNT,
            "complete": _BOOLEAN,
        },
        "messages has_more cursor complete",
    ),
    "Ack": _closed({"receipts": _RECEIPTS}, "receipts"),
    "Nack": _closed(
        {
            "receipts": _RECEIPTS,
            "delay": {"type": ["number", "null"], "minimum": 0, "maximum": settings.MAX_BACKOFF_S},
            "dead_letter": {"type": ["boolean", "null"], "default": False},
            "reason": {"type": ["string", "null"], "maxLength": consuming.MAX_REASON_CHARACTERS},
        },
        "receipts",
    ),
    "Extend": _closed(
        {
            "receipts": _RECEIPTS,
            "ack_wait": {
                "type": ["number", "null"],
                "exclusiveMinimum": 0,
                "maximum": settings.MAX_ACK_WAIT_S,
            },
        },
        "receipts",
    ),
    "Results": _open(
        {
            "results": _list(
                _open(
                    {
                        "receipt": _STRING,
                        "status": {"enum": ["acked", "nacked", "extended", "lease_expired", "unknown"]},
                        "dead_letter": _COUNT,
                        "deadline": _TIME,
                    },
                    "receipt status",
                )
            )
        },
        "results",
    ),
    "Transaction": _closed(
        {
            "publish": _or_null(
                _list(schema("AddressedMessage"), maxItems=consuming.MAX_TRANSACTION_MESSAGES)
            ),
            "ack": _or_null(
                _list(
                    _closed(
                        {"subscription": _NAME, "receipts": _list(_STRING, minItems=1)},
                        "subscription receipts",
                    ),
                    maxItems=consuming.MAX_TRANSACTION_RECEIPTS,
                )
            ),
        }
    ),
    "Committed": _open({"messages": _list(schema("Position")), "acked": _COUNT}, "messages acked"),
}

_DEATHS: Final = _list(
    _open(
        {
            "subscription": _NAME,
            "channel": _NAME,
            "reason": _REASON,
            "count": _COUNT,
            "first_at": _TIME,
            "last_at": _TIME,
        },
        "subscription channel reason count first_at last_at",
    )
)
_NARROWED: Final = {
    "subscription": {**_NAME, "type": ["string", "null"]},
    "channel": {**_NAME, "type": ["string", "null"]},
    "reason": {"enum": [*_REASON["enum"], None]},
}
_CHOSEN: Final = {**_NARROWED, "ids": {"type": ["array", "null"], "items": _COUNT, "maxItems": 1000}}
_PACE: Final = {
    "max": {"type": ["integer", "null"], "minimum": 1},
    "rate": {
        "description": "So many become due a second.",
        "type": ["number", "null"],
        "exclusiveMinimum": 0,
        "maximum": dead_letters.MAX_RATE,
    },
}
AFTERWARDS: Final[dict[str, Any]] = {
    "DeadLetter": _open(
        {
            "id": _COUNT,
            "subscription": _NAME,
            "channel": _NAME,
            "reason": _REASON,
            "attempts": _COUNT,
            "last_error": {"type": ["string", "null"]},
            "created_at": _TIME,
            "journey": _DEATHS,
            "message": schema("Message"),
            "published": _open({"channel": _NAME, "id": _COUNT, "seq": _COUNT}, "channel id seq"),
            "unroutable": _STRING,
        },
        "id subscription channel reason attempts last_error created_at journey message",
    ),
    "DeadLetterPage": _page("dead_letters", "DeadLetter", _COUNT),
    "Replay": {
        "anyOf": [_closed({**_CHOSEN, **_PACE}), _closed({"filter": _closed(_CHOSEN), **_PACE}, "filter")]
    },
    "Purge": _closed(
        {
            **_NARROWED,
            "older_than": {
                "description": "Seconds; or RFC 3339, or 10m, 2h, 1d.",
                "type": ["number", "string"],
                "minimum": 0,
                "examples": ["1d"],
            },
        },
        "older_than",
    ),
    "Replayed": _open(
        {"id": _COUNT, "subscription": _NAME, "message_id": _COUNT}, "id subscription message_id"
    ),
    "ReplayedAll": _open({"replayed": _COUNT, "skipped": _COUNT, "dry_run": _BOOLEAN}, "replayed skipped"),
    "Purged": _open({"purged": _COUNT}, "purged"),
    "Scheduled": _open(
        {
            "scheduled_id": {"type": "string", "pattern": r"^\d+$"},
            "channel": _NAME,
            "deliver_at": _TIME,
            "created_at": _TIME,
            "type": _STRING,
            "key": _STRING,
            "data": {"description": "Any JSON value."},
            "data_base64": _STRING,
            "headers": {"type": "object", "additionalProperties": _STRING},
            "ttl": {"type": "number"},
            "sender": _STRING,
        },
        "scheduled_id channel deliver_at created_at type",
    ),
    "ScheduledPage": _page("scheduled", "Scheduled", _COUNT),
    "ScheduledAt": _open(
        {"scheduled_id": _STRING, "channel": _NAME, "deliver_at": _TIME}, "scheduled_id channel deliver_at"
    ),
}
SCHEMAS: Final[dict[str, Any]] = {**DEFINITIONS, **DELIVERIES, **AFTERWARDS}
