"""The routes of the hot faces, for the OpenAPI document. `app.hot` answers them before they get here; behind
another path prefix these do the same work through the same functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request, Response
from starlette.types import Receive, Scope, Send

from app.routes.bodies import JSON
from app.routes.parameters import ChannelName
from app.routes.publish import publish_many, publish_one
from app.schemas import answers, schema
from app.stream.sse import subscribe
from app.wiring import Service


class Handled(Response):
    """Runs a bare handler in place of a response."""

    def __init__(self, handler: Callable[..., Any], service: Service) -> None:
        super().__init__()
        self._handler = handler
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(self._service, scope, receive, send)


def router(service: Callable[[], Service]) -> APIRouter:
    """The routes, over whatever service is running."""
    routes = APIRouter(tags=["live"])

    @routes.post(
        "/v1/channels/{channel}/messages",
        status_code=201,
        responses=_PUBLISHED | _ACCEPTED,
        openapi_extra=_ONE_OR_MANY,
    )
    async def publish(
        channel: ChannelName,
        idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
        expected_last_seq: Annotated[int | None, Header(ge=0)] = None,
    ) -> Response:
        """Publish one message, or an array of 1 to 1000 that become visible together. Answered after the
        commit."""
        return Handled(publish_one, service())

    @routes.post("/v1/messages", status_code=201, responses=_MANY, openapi_extra=_BATCH)
    async def publish_to_many(
        idempotency_key: Annotated[str | None, Header(max_length=255)] = None,
    ) -> Response:
        """Publish to several channels, atomically."""
        return Handled(publish_many, service())

    @routes.get("/v1/subscribe", responses=_STREAM)
    async def follow(
        request: Request,
        channel: Annotated[
            list[Annotated[str, Query(json_schema_extra={"pattern": r"^[A-Za-z0-9_~:@*>.-]{1,255}$"})]],
            Query(description="Channels or patterns, up to 128.", max_length=128),
        ],
        after: Annotated[int | None, Query(ge=0)] = None,
        last: Annotated[int | None, Query(ge=1, le=1000)] = None,
        since: Annotated[str | None, Query(max_length=64)] = None,
        start: Annotated[str | None, Query(alias="from", pattern="^(earliest|latest)$")] = None,
        types: Annotated[list[str] | None, Query(alias="type")] = None,
        keys: Annotated[list[str] | None, Query(alias="key")] = None,
        heartbeat: Annotated[int, Query(ge=5, le=60)] = 15,
        last_event_id: Annotated[str | None, Header(json_schema_extra={"pattern": r"^\d{1,15}$"})] = None,
    ) -> Response:
        """Follow channels as server-sent events, from a cursor on, without a gap."""
        return Handled(subscribe, service())

    return routes


_ONE_OR_MANY: Final = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {
                "schema": {
                    "oneOf": [
                        schema("NewMessage"),
                        {
                            "type": "array",
                            "minItems": 1,
                            "maxItems": 1000,
                            "items": schema("NewMessage"),
                        },
                    ]
                }
            },
            "application/cloudevents+json": {"schema": {"type": "object"}},
            "application/cloudevents-batch+json": {"schema": {"type": "array"}},
        },
    }
}
_BATCH: Final = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {
                "schema": {
                    "type": "object",
                    "required": ["messages"],
                    "properties": {
                        "messages": {
                            "type": "array",
                            "minItems": 1,
                            "maxItems": 1000,
                            "items": schema("AddressedMessage"),
                        }
                    },
                    "additionalProperties": False,
                }
            }
        },
    }
}
_PUBLISHED: Final = answers("Committed.", {"oneOf": [schema("Position"), schema("Positions")]}, 201)
_ACCEPTED: Final = answers(
    "To be published later; or, ephemeral, sent to live subscribers and not stored.",
    {"anyOf": [schema("ScheduledAt"), {"type": "object"}]},
    202,
)
_MANY: Final = answers("Committed.", schema("Positions"), 201)
_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "Events: message (unnamed), ready, gap, ephemeral, goodbye.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
