"""Deliveries and dead letters as they are shown, and which dead letters a request is about."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from app.api.dead_letters import Replay, encode_dead_letter, parse_purge, parse_replay
from app.api.lists import page_by_id
from app.api.scheduled import ScheduledPage, encode_scheduled
from app.message.deliveries import encode_deliveries, encode_delivery, encode_results
from subscriptions.domain.delivery import (
    DeadLetter,
    DeadLetterFilter,
    Delivery,
    Loss,
    Reason,
    Scheduled,
    Settled,
    Settlement,
)
from subscriptions.domain.errors import GaplessError
from subscriptions.domain.model import Message, NewMessage

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
NOW_US = 1_795_176_000_000_000
MESSAGE = Message(1042, "a", 17, "t", 'k"', b'{"x": 1.50}', None, b"", None, 0, None)
SHOWN = {
    "id": 1042,
    "channel": "a",
    "seq": 17,
    "type": "t",
    "key": 'k"',
    "data": {"x": 1.5},
    "created_at": "1970-01-01T00:00:00.000000Z",
}


def test_deliveries() -> None:
    delivery = Delivery(MESSAGE, 5, 2, 1_500_000)
    shown = {"receipt": "r-1", "attempt": 2, "deadline": "1970-01-01T00:00:01.500000Z", "message": SHOWN}
    assert json.loads(encode_delivery(delivery, "r-1")) == shown
    assert b"\n" not in encode_delivery(delivery, "r-1")
    both = encode_deliveries([(delivery, "r-1"), (delivery, "r-2")])
    assert json.loads(both) == {"deliveries": [shown, {**shown, "receipt": "r-2"}]}
    assert encode_deliveries([]) == b'{"deliveries":[]}'


def test_gaps_are_there_where_there_are_some() -> None:
    losses = [Loss('a"', 8, 7, 1, 1, 1), Loss("b", 2, 1, 2, 2, 2)]
    assert json.loads(encode_deliveries([], losses)) == {
        "deliveries": [],
        "gaps": [
            {"channel": 'a"', "first_seq": 8, "missed": 7},
            {"channel": "b", "first_seq": 2, "missed": 1},
        ],
    }


def test_results_repeat_receipts_as_they_came() -> None:
    receipts = ["a", 'forged"\n', "c", "d"]
    settled = [
        Settled(Settlement.ACKED),
        Settled(Settlement.UNKNOWN),
        Settled(Settlement.NACKED, dead_letter=7),
        Settled(Settlement.EXTENDED, deadline_us=0),
    ]
    assert json.loads(encode_results(receipts, settled)) == {
        "results": [
            {"receipt": "a", "status": "acked"},
            {"receipt": 'forged"\n', "status": "unknown"},
            {"receipt": "c", "status": "nacked", "dead_letter": 7},
            {"receipt": "d", "status": "extended", "deadline": "1970-01-01T00:00:00.000000Z"},
        ]
    }


def test_dead_letters() -> None:
    journey = b'[{"subscription":"s","channel":"a","reason":"rejected","count":1}]'
    entry = DeadLetter(3, "s", Reason.REJECTED, 2, None, 0, journey, MESSAGE)
    shown: dict[str, Any] = {
        "id": 3,
        "subscription": "s",
        "channel": "a",
        "reason": "rejected",
        "attempts": 2,
        "last_error": None,
        "created_at": "1970-01-01T00:00:00.000000Z",
        "journey": json.loads(journey),
        "message": SHOWN,
    }
    assert json.loads(encode_dead_letter(entry)) == shown
    published = DeadLetter(
        3, "s", Reason.REJECTED, 2, "boom", 0, journey, MESSAGE, b'{"channel":"d","id":9,"seq":1}', "no name"
    )
    assert json.loads(encode_dead_letter(published)) == {
        **shown,
        "last_error": "boom",
        "published": {"channel": "d", "id": 9, "seq": 1},
        "unroutable": "no name",
    }


def test_scheduled() -> None:
    waiting = Scheduled(5, NewMessage("a", b"1", headers=b'{"h":"v"}', ttl=5.0, key="k"), 1_000_000, 0)
    assert json.loads(encode_scheduled(waiting)) == {
        "scheduled_id": "5",
        "channel": "a",
        "deliver_at": "1970-01-01T00:00:01.000000Z",
        "created_at": "1970-01-01T00:00:00.000000Z",
        "type": "message",
        "key": "k",
        "data": 1,
        "headers": {"h": "v"},
        "ttl": 5,
    }
    binary = encode_scheduled(Scheduled(6, NewMessage("a", None, b"\xff"), 0, 0))
    assert json.loads(binary)["data_base64"] == "/w=="


@pytest.mark.parametrize("more", [False, True])
async def test_pages(more: bool) -> None:
    entries = [Scheduled(n, NewMessage("a", b"%d" % n), 0, 0) for n in range(3, 5 + more)]

    async def read(cursor: int, limit: int) -> list[Scheduled]:
        return [each for each in entries if each.id > cursor][: min(limit, 2)]

    page = await page_by_id(ScheduledPage, read, encode_scheduled, 0, 2)
    items = b",".join(encode_scheduled(each) for each in entries[:2])
    has_more = b"true" if more else b"false"
    assert page.body == b'{"scheduled":[%b],"has_more":%b,"cursor":4}' % (items, has_more)
    empty = await page_by_id(ScheduledPage, read, encode_scheduled, 9, 2)
    assert empty.body == b'{"scheduled":[],"has_more":false,"cursor":9}'


REPLAYS: list[tuple[dict[str, Any], DeadLetterFilter]] = [
    ({}, DeadLetterFilter("n")),
    ({"subscription": None, "channel": None, "reason": None, "ids": None}, DeadLetterFilter("n")),
    (
        {"subscription": "s", "channel": "c", "reason": "expired", "ids": [3, 1]},
        DeadLetterFilter("n", "s", "c", Reason.EXPIRED, ids=(3, 1)),
    ),
    ({"ids": []}, DeadLetterFilter("n", ids=())),
    ({"filter": {"subscription": "s", "ids": [1]}}, DeadLetterFilter("n", "s", ids=(1,))),
    ({"filter": {}}, DeadLetterFilter("n")),
    ({"filter": None, "channel": "c"}, DeadLetterFilter("n", channel="c")),
]


@pytest.mark.parametrize(("body", "which"), REPLAYS, ids=repr)
def test_what_is_replayed(body: dict[str, Any], which: DeadLetterFilter) -> None:
    assert parse_replay("n", json.dumps(body).encode()) == Replay(which, None, None)


@pytest.mark.parametrize("body", [{"channel": "c"}, {"filter": {"channel": "c"}}], ids=repr)
def test_how_many_are_replayed_and_how_fast(body: dict[str, Any]) -> None:
    paced = json.dumps({**body, "max": 10, "rate": 0.5}).encode()
    assert parse_replay("n", paced) == Replay(DeadLetterFilter("n", channel="c"), 10, 0.5)
    assert parse_replay("n", json.dumps({**body, "max": None, "rate": None}).encode())[1:] == (None, None)


PURGES: list[tuple[object, int | None]] = [
    (0, None),
    (0.0, None),
    (1, NOW_US - 1_000_000),
    (0.5, NOW_US - 500_000),
    (1e300, 0),
    ("10m", NOW_US - 600_000_000),
    ("2026-11-20T12:00:00Z", NOW_US),
    ("1969-01-01T00:00:00Z", 0),
]


@pytest.mark.parametrize(("older_than", "before_us"), PURGES, ids=repr)
def test_what_is_purged(older_than: object, before_us: int | None) -> None:
    body = json.dumps({"older_than": older_than, "subscription": "s"}).encode()
    assert parse_purge("n", body, NOW) == DeadLetterFilter("n", "s", before_us=before_us)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"subscription": ""}, "subscription"),
    ({"subscription": "a*"}, "subscription"),
    ({"channel": "a..b"}, "channel"),
    ({"reason": "boredom"}, "reason"),
    ({"ids": [1] * 1001}, "ids"),
    ({"ids": [1, -1]}, "ids[1]"),
    ({"ids": ["1"]}, "ids[0]"),
    ({"ids": [2**53]}, "ids[0]"),
    ({"x": 1}, "x"),
    ({"filter": {"x": 1}}, "filter.x"),
    ({"filter": {"filter": {}}}, "filter.filter"),
    ({"filter": {}, "subscription": "s"}, "filter"),
    ({"filter": {"max": 1}}, "filter.max"),
    ({"max": 0}, "max"),
    ({"max": 1.5}, "max"),
    ({"rate": 0}, "rate"),
    ({"rate": -1}, "rate"),
    ({"rate": 1e7}, "rate"),
    ({"rate": "fast"}, "rate"),
]
BAD_AGES: list[Any] = [None, -1, -0.1, "soon", "-5m", "", True, [], "2026-11-20T12:00:00"]


@pytest.mark.parametrize(("body", "field"), BAD, ids=lambda value: repr(value)[:40])
def test_bad_filters(body: dict[str, Any], field: str) -> None:
    with pytest.raises(GaplessError) as caught:
        parse_replay("n", json.dumps(body).encode())
    assert caught.value.errors[0].field == field


@pytest.mark.parametrize("body", [{}, *({"older_than": age} for age in BAD_AGES)], ids=repr)
def test_bad_ages(body: dict[str, Any]) -> None:
    with pytest.raises(GaplessError) as caught:
        parse_purge("n", json.dumps(body).encode(), NOW)
    assert caught.value.errors[0].field == "older_than"
