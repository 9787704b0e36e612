"""The OpenAPI and AsyncAPI documents: what the routes cannot say of themselves."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from app import schemas

VERSION: Final = "0.1.0"
_STRING: Final = {"type": "string"}
_TIME: Final = {"type": "string", "format": "date-time"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_HEADERS: Final = {"type": "object", "additionalProperties": _STRING, "maxProperties": 64}

SCHEMAS: Final[dict[str, Any]] = {
    "NewMessage": {
        "type": "object",
        "description": "Exactly one of data and data_base64, at most one of deliver_at and delay.",
        "properties": {
            "data": {"description": "Any JSON value."},
            "data_base64": {"type": "string", "contentEncoding": "base64"},
            "type": {"type": "string", "minLength": 1, "maxLength": 128, "default": "message"},
            "key": {"type": ["string", "null"], "maxLength": 255},
            "headers": _HEADERS,
            "ttl": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 315360000},
            "deliver_at": {"type": ["string", "null"], "format": "date-time"},
            "delay": {"type": ["number", "null"], "minimum": 0, "maximum": 315360000},
            "ephemeral": {"type": "boolean", "default": False},
        },
        "additionalProperties": False,
    },
    "AddressedMessage": {
        "type": "object",
        "required": ["channel"],
        "properties": {
            "channel": {"type": "string", "minLength": 1, "maxLength": 255},
            "data": {"description": "Any JSON value."},
            "data_base64": {"type": "string", "contentEncoding": "base64"},
            "type": {"type": "string", "minLength": 1, "maxLength": 128},
            "key": {"type": ["string", "null"], "maxLength": 255},
            "headers": _HEADERS,
            "ttl": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 315360000},
        },
        "additionalProperties": False,
    },
    "Position": {
        "type": "object",
        "required": ["id", "channel", "seq", "created_at"],
        "properties": {"id": _COUNT, "channel": _STRING, "seq": _COUNT, "created_at": _TIME},
    },
    "Positions": {
        "type": "object",
        "required": ["messages"],
        "properties": {"messages": {"type": "array", "items": {"$ref": "#/components/schemas/Position"}}},
    },
    "Message": {
        "type": "object",
        "required": ["id", "channel", "seq", "type", "created_at"],
        "properties": {
            "id": _COUNT,
            "channel": _STRING,
            "seq": _COUNT,
            "type": _STRING,
            "key": {"type": ["string", "null"]},
            "data": {"description": "Any JSON value."},
            "data_base64": _STRING,
            "headers": _HEADERS,
            "sender": {"type": ["string", "null"]},
            "created_at": _TIME,
            "expires_at": {"type": ["string", "null"], "format": "date-time"},
        },
    },
    "Page": {
        "type": "object",
        "required": ["messages", "has_more", "cursor"],
        "properties": {
            "messages": {"type": "array", "items": {"$ref": "#/components/schemas/Message"}},
            "has_more": {"type": "boolean"},
            "cursor": _COUNT,
            "gap": {
                "type": "object",
                "required": ["reason", "ids"],
                "properties": {
                    "reason": {"const": "history_changed"},
                    "ids": {"type": "array", "items": _COUNT, "minItems": 2, "maxItems": 2},
                },
            },
        },
    },
    "ChannelSettings": {
        "type": "object",
        "properties": {
            "name": _STRING,
            "retention": {
                "type": ["object", "null"],
                "properties": {
                    "max_age": {"type": ["integer", "null"], "minimum": 1, "maximum": 2147483647},
                    "max_messages": {"type": ["integer", "null"], "minimum": 1, "maximum": 2**53},
                },
                "additionalProperties": False,
            },
            "message_ttl": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 315360000},
        },
        "additionalProperties": False,
    },
    "Channel": {
        "type": "object",
        "required": ["name", "last_id", "last_seq", "first_seq", "created_at", "retention"],
        "properties": {
            "name": _STRING,
            "last_id": _COUNT,
            "last_seq": _COUNT,
            "first_seq": _COUNT,
            "created_at": _TIME,
            "retention": {"type": "object", "properties": {"max_age": _COUNT, "max_messages": _COUNT}},
            "message_ttl": {"type": "number"},
            "origins": {"type": "object", "additionalProperties": _STRING},
        },
    },
    "ChannelPage": {
        "type": "object",
        "required": ["channels", "has_more", "cursor"],
        "properties": {
            "channels": {"type": "array", "items": {"$ref": "#/components/schemas/Channel"}},
            "has_more": {"type": "boolean"},
            "cursor": {"type": ["string", "null"]},
        },
    },
    "Problem": {
        "type": "object",
        "required": ["type", "title", "status", "detail", "code", "retryable"],
        "properties": {
            "type": _STRING,
            "title": _STRING,
            "status": {"type": "integer"},
            "detail": _STRING,
            "code": _STRING,
            "retryable": {"type": "boolean"},
            "errors": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"field": _STRING, "message": _STRING},
                },
            },
        },
    },
    **schemas.SCHEMAS,
}
_PROBLEM: Final = {
    "description": "Refused, or failed; see code and retryable.",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def install(app: FastAPI) -> None:
    """Make `/openapi.json` complete: shared schemas, and the problem document on every operation."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            made.setdefault("components", {}).setdefault("schemas", {}).update(SCHEMAS)
            for schema in ("HTTPValidationError", "ValidationError"):
                made["components"]["schemas"].pop(schema, None)
            for operations in made["paths"].values():
                for operation in operations.values():
                    responses = operation["responses"]
                    responses.pop("422", None)
                    responses["4XX"] = responses["5XX"] = _PROBLEM
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


ASYNCAPI: Final[dict[str, Any]] = {
    "asyncapi": "3.0.0",
    "info": {
        "title": "Gapless",
        "version": VERSION,
        "description": "Live subscriptions over server-sent events: ids rise; a reconnect with "
        "Last-Event-ID misses nothing and repeats nothing. Deliveries of durable subscriptions: their leases "
        "end with the stream.",
        "license": {"name": "Apache-2.0"},
    },
    "defaultContentType": "application/json",
    "channels": {
        "subscribe": {
            "address": "/v1/subscribe",
            "messages": {
                "message": {"payload": {"$ref": "#/components/schemas/Message"}},
                "ready": {"name": "ready", "payload": {"$ref": "#/components/schemas/Ready"}},
                "gap": {"name": "gap", "payload": {"$ref": "#/components/schemas/Gap"}},
                "ephemeral": {"name": "ephemeral", "payload": {"type": "object"}},
                "goodbye": {"name": "goodbye", "payload": {"$ref": "#/components/schemas/Goodbye"}},
            },
        },
        "consume": {
            "address": "/v1/subscriptions/{name}/consume",
            "parameters": {"name": {"description": "A durable subscription."}},
            "messages": {
                "delivery": {"name": "delivery", "payload": {"$ref": "#/components/schemas/Delivery"}},
                "goodbye": {"name": "goodbye", "payload": {"$ref": "#/components/schemas/Farewell"}},
            },
        },
    },
    "operations": {
        "follow": {"action": "send", "channel": {"$ref": "#/channels/subscribe"}, "summary": "Follow."},
        "consume": {"action": "send", "channel": {"$ref": "#/channels/consume"}, "summary": "Consume."},
    },
    "components": {
        "schemas": {
            "Message": SCHEMAS["Message"],
            "Delivery": SCHEMAS["Delivery"],
            "Ready": {"type": "object", "required": ["cursor"], "properties": {"cursor": _COUNT}},
            "Gap": {
                "type": "object",
                "required": ["channel", "first_seq", "missed"],
                "properties": {"channel": _STRING, "first_seq": _COUNT, "missed": _COUNT},
            },
            "Goodbye": {
                "type": "object",
                "required": ["reason"],
                "properties": {
                    "reason": {"enum": ["shutdown", "slow_consumer", "credential_expired", "history_changed"]}
                },
            },
            "Farewell": {
                "type": "object",
                "required": ["reason"],
                "properties": {
                    "reason": {
                        "enum": ["shutdown", "slow_consumer", "subscription_deleted", "history_changed"]
                    }
                },
            },
        }
    },
}
