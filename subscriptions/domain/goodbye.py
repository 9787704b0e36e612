"""Why the server ends a stream, of messages or of deliveries."""

from __future__ import annotations

from enum import Enum


class Goodbye(Enum):
    """The reason, as it is sent to clients."""

    SHUTDOWN = "shutdown"
    SLOW_CONSUMER = "slow_consumer"
    CREDENTIAL_EXPIRED = "credential_expired"
    SUBSCRIPTION_DELETED = "subscription_deleted"
    HISTORY_CHANGED = "history_changed"
