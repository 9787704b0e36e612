"""Reads from a request which dead letters it is about."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import UNSET, Meta, UnsetType

from app.api.definition_bodies import decode
from app.message import limits
from app.message.times import MAX_MOMENT_CHARACTERS, parse_since
from subscriptions.domain.delivery import DeadLetterFilter, Reason
from subscriptions.domain.errors import invalid
from subscriptions.domain.model import MAX_ID, microseconds
from subscriptions.domain.names import check_channel

MAX_IDS: Final = 1000
MAX_RATE: Final = 1_000_000

_Id = Annotated[int, Meta(ge=0, le=MAX_ID)]


class DeadLetterMembers(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters: all of these."""

    subscription: limits.Name | UnsetType | None = UNSET
    channel: limits.Name | UnsetType | None = UNSET
    reason: Reason | UnsetType | None = UNSET


class ReplayFilter(DeadLetterMembers, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters: all of these."""

    ids: Annotated[list[_Id], Meta(max_length=MAX_IDS)] | UnsetType | None = UNSET


class ReplayRequest(ReplayFilter, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters, at most `max`, of which `rate` become due per second. `filter` may hold which."""

    filter: ReplayFilter | UnsetType | None = UNSET
    max: Annotated[int, Meta(ge=1, le=MAX_ID)] | UnsetType | None = UNSET
    rate: Annotated[float, Meta(gt=0, le=MAX_RATE)] | UnsetType | None = UNSET


class PurgeRequest(DeadLetterMembers, kw_only=True, forbid_unknown_fields=True):
    """Which dead letters. `older_than` is an age in seconds or as 10m, 2h, 1d, or a time before which they
    were made."""

    older_than: Annotated[float, Meta(ge=0)] | Annotated[str, Meta(max_length=MAX_MOMENT_CHARACTERS)]


class Replay(NamedTuple):
    """Which dead letters, how many at most, and how many per second."""

    which: DeadLetterFilter
    max: int | None
    rate: float | None


def parse_replay(namespace: str, raw: bytes) -> Replay:
    """The body of a replay of many. Without members it is about all. `filter` may hold its members."""
    asked = decode(raw, ReplayRequest)
    body: ReplayFilter = asked
    if isinstance(asked.filter, ReplayFilter):
        if asked != ReplayRequest(filter=asked.filter, max=asked.max, rate=asked.rate):
            raise invalid("filter", "stands alone: its members are given inside it or beside each other")
        body = asked.filter
    ids = None if body.ids is UNSET or body.ids is None else tuple(body.ids)
    return Replay(
        DeadLetterFilter(namespace, *_narrowed(body), ids=ids),
        None if asked.max is UNSET else asked.max,
        None if asked.rate is UNSET else asked.rate,
    )


def parse_purge(namespace: str, raw: bytes, now: datetime) -> DeadLetterFilter:
    """The body of a purge: dead letters made before a time, or older than an age."""
    body = decode(raw, PurgeRequest)
    return DeadLetterFilter(namespace, *_narrowed(body), before_us=_before(body.older_than, now))


def _narrowed(body: DeadLetterMembers) -> tuple[str | None, str | None, Reason | None]:
    return (
        check_channel(body.subscription, "subscription") if isinstance(body.subscription, str) else None,
        check_channel(body.channel, "channel") if isinstance(body.channel, str) else None,
        body.reason if isinstance(body.reason, Reason) else None,
    )


def _before(older_than: float | str, now: datetime) -> int | None:
    if isinstance(older_than, str):
        return max(0, microseconds(parse_since(older_than, now, "older_than")))
    if older_than == 0:
        # All of them, independent of the clocks of this machine and of the database.
        return None
    return max(0, microseconds(now) - round(min(older_than, 1e12) * 1e6))
