"""The client of Gapless: ordered, durable delivery for chat and events.

`AsyncClient` for asyncio, `Client` for threads; both publish without doubling and read without missing.
"""

from gapless._async import AsyncClient
from gapless._async_stream import AsyncStream
from gapless._effects import AsyncEffects, Effects, SyncEffects
from gapless._errors import (
    Conflict,
    CredentialExpired,
    CursorExpired,
    Forbidden,
    GaplessError,
    HeadMismatch,
    HistoryLost,
    IdempotencyMismatch,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    ProtocolError,
    RateLimited,
    ServerError,
    Unauthenticated,
    Unavailable,
    Unreachable,
)
from gapless._interest import SubscribeOptions
from gapless._models import Channel, Ephemeral, Gap, Message, NewMessage, Page, Published, Retention
from gapless._publish import BatchOptions, MessageOptions, PublishOptions
from gapless._read import UNSET, HistoryOptions
from gapless._retry import NO_RETRY, RetryPolicy
from gapless._sync import Client
from gapless._sync_stream import SyncStream
from gapless._version import __version__

__all__ = [
    "NO_RETRY",
    "UNSET",
    "AsyncClient",
    "AsyncEffects",
    "AsyncStream",
    "BatchOptions",
    "Channel",
    "Client",
    "Conflict",
    "CredentialExpired",
    "CursorExpired",
    "Effects",
    "Ephemeral",
    "Forbidden",
    "Gap",
    "GaplessError",
    "HeadMismatch",
    "HistoryLost",
    "HistoryOptions",
    "IdempotencyMismatch",
    "InvalidRequest",
    "Message",
    "MessageOptions",
    "NewMessage",
    "NotFound",
    "Page",
    "PayloadTooLarge",
    "ProtocolError",
    "PublishOptions",
    "Published",
    "RateLimited",
    "Retention",
    "RetryPolicy",
    "ServerError",
    "SubscribeOptions",
    "SyncEffects",
    "SyncStream",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
    "__version__",
]
