"""The client of Gapless: ordered, durable delivery for chat and events.

`AsyncClient` is for asyncio, `Client` for threads. Both publish without duplicates and read without misses.
"""

from gapless._async.client import AsyncClient
from gapless._async.connection import AsyncConnection
from gapless._async.consumer import AsyncConsumer, AsyncDelivery
from gapless._async.conversation import AsyncConversation
from gapless._async.stream import AsyncStream
from gapless._calls.channels import UNSET
from gapless._calls.dead_letters import DeadLetter, DeadLetterOptions, Death, ReplayCounts, Replayed
from gapless._calls.definitions import Change, Exported, Imported
from gapless._calls.delivery import Outstanding, PulledDelivery, Settled
from gapless._calls.history import HistoryOptions
from gapless._calls.markers import Marker, Unread
from gapless._calls.policies import Policy
from gapless._calls.presence import Joined, Left, Presence, PresenceChanged, PresentClient
from gapless._calls.publish import BatchOptions, ConnectedPublishOptions, MessageOptions, PublishOptions
from gapless._calls.scheduled import Scheduled, ScheduleOptions
from gapless._calls.subscription import DeadLetterRoute, Filter, Length, Push, Stats, Subscription
from gapless._calls.subscriptions import SubscriptionOptions
from gapless._calls.tickets import Ticket
from gapless._calls.transactions import Committed
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
    VersionMismatch,
)
from gapless._fold import Fold
from gapless._lost import Gap
from gapless._models import Channel, Ephemeral, Message, NewMessage, Original, Page, Published, Retention
from gapless._retry import NO_RETRY, RetryPolicy
from gapless._start import Last
from gapless._streams.consuming import ConsumeOptions
from gapless._streams.interest import SubscribeOptions
from gapless._streams.pulling import AutoConsumeOptions
from gapless._streams.pushes import ConnectedConsumeOptions, ConnectedSubscribeOptions
from gapless._streams.settled import ConnectedAutoConsumeOptions
from gapless._sync.client import Client
from gapless._sync.consumer import Consumer, Delivery
from gapless._sync.conversation import Conversation
from gapless._sync.stream import Stream
from gapless._version import __version__

__all__ = [
    "NO_RETRY",
    "UNSET",
    "AsyncClient",
    "AsyncConnection",
    "AsyncConsumer",
    "AsyncConversation",
    "AsyncDelivery",
    "AsyncStream",
    "AutoConsumeOptions",
    "BatchOptions",
    "Change",
    "Channel",
    "Client",
    "Committed",
    "Conflict",
    "ConnectedAutoConsumeOptions",
    "ConnectedConsumeOptions",
    "ConnectedPublishOptions",
    "ConnectedSubscribeOptions",
    "ConsumeOptions",
    "Consumer",
    "Conversation",
    "CredentialExpired",
    "CursorExpired",
    "DeadLetter",
    "DeadLetterOptions",
    "DeadLetterRoute",
    "Death",
    "Delivery",
    "Ephemeral",
    "Exported",
    "Filter",
    "Fold",
    "Forbidden",
    "Gap",
    "GaplessError",
    "HeadMismatch",
    "HistoryLost",
    "HistoryOptions",
    "IdempotencyMismatch",
    "Imported",
    "InvalidRequest",
    "Joined",
    "Last",
    "LeaseLost",
    "Left",
    "Length",
    "Marker",
    "Message",
    "MessageOptions",
    "NewMessage",
    "NotFound",
    "Original",
    "Outstanding",
    "Page",
    "PayloadTooLarge",
    "Policy",
    "PreconditionFailed",
    "Presence",
    "PresenceChanged",
    "PresentClient",
    "ProtocolError",
    "PublishOptions",
    "Published",
    "PulledDelivery",
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
    "Stream",
    "SubscribeOptions",
    "Subscription",
    "SubscriptionOptions",
    "Ticket",
    "TransactionConflict",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
    "Unread",
    "VersionMismatch",
    "__version__",
]
