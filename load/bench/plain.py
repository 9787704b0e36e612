"""The peer for single publishes: a plain FastAPI route that validates a message and stores nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel, Field

app = FastAPI()


class NewMessage(BaseModel):
    """The body of a publish."""

    data: Any
    type: str = Field("message", min_length=1, max_length=128)
    key: str | None = Field(None, max_length=255)
    headers: dict[str, str] = Field(default_factory=dict, max_length=64)
    ttl: float | None = Field(None, gt=0)


class Published(BaseModel):
    """The answer to a publish."""

    id: int
    channel: str
    seq: int
    created_at: datetime


@app.post("/v1/channels/{channel}/messages", status_code=201)
async def publish(channel: str, message: NewMessage) -> Published:
    """Validate a message, and do not store it."""
    return Published(id=1, channel=channel, seq=1, created_at=datetime.now(UTC))
