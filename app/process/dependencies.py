"""What the handlers of routes may ask for."""

from __future__ import annotations

from dataclasses import dataclass

from app.api.operate import Readiness
from app.api.settings import PushRules
from app.faces.acks import Acks
from app.faces.websocket.sessions import Sessions
from app.http.principals import Principals
from app.message.receipts import ReceiptCodec
from subscriptions.engine.durable.announcing import (
    AnnouncingDeadLetters,
    AnnouncingPolicies,
    AnnouncingSchedule,
    AnnouncingSubscriptions,
    AnnouncingTransactions,
)
from subscriptions.engine.durable.consumers import Consumers
from subscriptions.engine.exchange import Exchange
from subscriptions.engine.gate import Gate
from subscriptions.engine.live.engine import LiveEngine
from subscriptions.engine.presence import Presence
from subscriptions.engine.publisher import Publisher
from subscriptions.ports import (
    ChannelPort,
    HistoryPort,
    KeyPort,
    MarkerPort,
    NamespacePort,
    ReadPort,
    ViewPort,
)


@dataclass(frozen=True, slots=True)
class Dependencies:
    """A handler's parameters, except the request, get the members with their names. So a handler's signature
    says what the handler can touch."""

    publisher: Publisher
    exchange: Exchange
    live: LiveEngine
    read: ReadPort
    history: HistoryPort
    views: ViewPort
    channels: ChannelPort
    markers: MarkerPort
    consumers: Consumers
    receipts: ReceiptCodec
    acks: Acks
    subscriptions: AnnouncingSubscriptions
    policies: AnnouncingPolicies
    dead_letters: AnnouncingDeadLetters
    schedules: AnnouncingSchedule
    transactions: AnnouncingTransactions
    presence: Presence
    sessions: Sessions
    gate: Gate
    readiness: Readiness
    keys: KeyPort
    namespaces: NamespacePort
    principals: Principals
    push_rules: PushRules
    """Whether webhooks may have private addresses."""
