"""The client of Gapless: ordered, durable delivery for chat and events.

`AsyncClient` is for asyncio, `Client` for threads. Both publish without duplicates and read without misses.
"""

from gapless._async import AsyncClient
from gapless._async_connection import AsyncConnection
from gapless._async_consumer import AsyncConsumer, AsyncDelivery
from gapless._async_stream import AsyncStream
from gapless._consuming import ConsumeOptions
from gapless._dead_letters import DeadLetter, DeadLetterOptions, Death, ReplayCounts, Replayed
from gapless._delivery import Delivery, Outstanding, Settled
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
    LeaseLost,
    NotFound,
    PayloadTooLarge,
    PreconditionFailed,
    ProtocolError,
    RateLimited,
    ServerError,
    TransactionConflict,
    Unauthenticated,
    Unavailable,
    Unreachable,
)
from gapless._interest import SubscribeOptions
from gapless._lost import Gap
from gapless._models import Channel, Ephemeral, Message, NewMessage, Page, Published, Retention
from gapless._policies import Change, Exported, Imported, Policy
from gapless._publish import BatchOptions, ConnectedPublishOptions, MessageOptions, PublishOptions
from gapless._pulling import AutoConsumeOptions
from gapless._pushes import ConnectedConsumeOptions, ConnectedSubscribeOptions
from gapless._read import UNSET, HistoryOptions
from gapless._retry import NO_RETRY, RetryPolicy
from gapless._scheduled import Scheduled, ScheduleOptions
from gapless._subscription import DeadLetterRoute, Filter, Length, Push, Stats, Subscription
from gapless._subscriptions import SubscriptionOptions
from gapless._sync import Client
from gapless._sync_consumer import SyncConsumer, SyncDelivery
from gapless._sync_stream import SyncStream
from gapless._transactions import Committed
from gapless._version import __version__

__all__ = [
    "NO_RETRY",
    "UNSET",
    "AsyncClient",
    "AsyncConnection",
    "AsyncConsumer",
    "AsyncDelivery",
    "AsyncEffects",
    "AsyncStream",
    "AutoConsumeOptions",
    "BatchOptions",
    "Change",
    "Channel",
    "Client",
    "Committed",
    "Conflict",
    "ConnectedConsumeOptions",
    "ConnectedPublishOptions",
    "ConnectedSubscribeOptions",
    "ConsumeOptions",
    "CredentialExpired",
    "CursorExpired",
    "DeadLetter",
    "DeadLetterOptions",
    "DeadLetterRoute",
    "Death",
    "Delivery",
    "Effects",
    "Ephemeral",
    "Exported",
    "Filter",
    "Forbidden",
    "Gap",
    "GaplessError",
    "HeadMismatch",
    "HistoryLost",
    "HistoryOptions",
    "IdempotencyMismatch",
    "Imported",
    "InvalidRequest",
    "LeaseLost",
    "Length",
    "Message",
    "MessageOptions",
    "NewMessage",
    "NotFound",
    "Outstanding",
    "Page",
    "PayloadTooLarge",
    "Policy",
    "PreconditionFailed",
    "ProtocolError",
    "PublishOptions",
    "Published",
    "Push",
    "RateLimited",
    "ReplayCounts",
    "Replayed",
    "Retention",
    "RetryPolicy",
    "ScheduleOptions",
    "Scheduled",
    "ServerError",
    "Settled",
    "Stats",
    "SubscribeOptions",
    "Subscription",
    "SubscriptionOptions",
    "SyncConsumer",
    "SyncDelivery",
    "SyncEffects",
    "SyncStream",
    "TransactionConflict",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
    "__version__",
]
