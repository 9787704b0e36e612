"""Protocols of what the engine needs from outside: the database, the hint bus, time.

Adapters (`db`, `cache`) implement them; `tests/contract` runs one suite over every implementation.
"""

from subscriptions.ports.credentials import Credentials, KeyPort, NamespacePort, TicketPort
from subscriptions.ports.defining import PolicyPort, SubscriptionPort
from subscriptions.ports.delivering import (
    AttendancePort,
    DeadLetterPort,
    DeliveryPort,
    DeparturePort,
    ReapPort,
)
from subscriptions.ports.maintenance import MaintenancePort
from subscriptions.ports.marking import MarkerPort
from subscriptions.ports.presence import PresencePage, PresencePort, PresenceStats
from subscriptions.ports.publishing import AppendPort, HintBus, SchedulePort, TransactionPort
from subscriptions.ports.reading import (
    NO_PLACE,
    ChannelPort,
    Head,
    HistoryPage,
    HistoryPort,
    HistoryQuery,
    LatestPage,
    Lost,
    Page,
    Place,
    ReadPort,
    ReadWatermark,
    Span,
    Trim,
    ViewPort,
)
from subscriptions.ports.time import Clock

__all__ = [
    "NO_PLACE",
    "AppendPort",
    "AttendancePort",
    "ChannelPort",
    "Clock",
    "Credentials",
    "DeadLetterPort",
    "DeliveryPort",
    "DeparturePort",
    "Head",
    "HintBus",
    "HistoryPage",
    "HistoryPort",
    "HistoryQuery",
    "KeyPort",
    "LatestPage",
    "Lost",
    "MaintenancePort",
    "MarkerPort",
    "NamespacePort",
    "Page",
    "Place",
    "PolicyPort",
    "PresencePage",
    "PresencePort",
    "PresenceStats",
    "ReadPort",
    "ReadWatermark",
    "ReapPort",
    "SchedulePort",
    "Span",
    "SubscriptionPort",
    "TicketPort",
    "TransactionPort",
    "Trim",
    "ViewPort",
]
