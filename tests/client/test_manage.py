"""What keeping subscriptions and dead letters puts on the wire, and what is no answer."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import gapless
import httpx
import pytest
from gapless import (
    Conflict,
    DeadLetter,
    DeadLetterRoute,
    Death,
    Filter,
    Length,
    NotFound,
    PreconditionFailed,
    ProtocolError,
    Published,
    Push,
    ReplayCounts,
    Replayed,
    Stats,
    Subscription,
    Unreachable,
)

from tests.client.answers import Answers
from tests.client.faces import Face
from tests.client.model import message, problem

AT = "2026-11-20T12:00:00Z"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)

RAW_STATS = {
    "lag": 5, "in_flight": 2, "redelivered": 1, "oldest_unacked_seconds": 1.5, "dead_letters": 3,
    "delayed": 1, "waiting": 2, "acked": 40, "dead_lettered": 4, "removed_by_retention": 6, "purged": 7,
    "cursor": 1042,
}  # fmt: skip
RAW_SUBSCRIPTION: dict[str, Any] = {
    "name": "orders",
    "channels": ["orders.*"],
    "start": "earliest",
    "ack_wait": 30,
    "max_deliver": 5,
    "backoff": [1, 5, 30],
    "max_in_flight": 1000,
    "ordering": "key",
    "paused": False,
    "created_at": AT,
    "origins": {"ack_wait": "own", "backoff": "policy:all"},
}
SUBSCRIPTION = Subscription(
    name="orders",
    channels=("orders.*",),
    start="earliest",
    ack_wait=30,
    max_deliver=5,
    backoff=(1, 5, 30),
    max_in_flight=1000,
    ordering="key",
    message_ttl=None,
    max_backlog=None,
    filter=None,
    dead_letter=None,
    push=None,
    paused=False,
    created_at=NOON,
    origins={"ack_wait": "own", "backoff": "policy:all"},
    stats=None,
)
RAW_DEATH = {
    "subscription": "orders", "channel": "orders.eu", "reason": "max_deliver", "count": 2, "first_at": AT,
    "last_at": AT,
}  # fmt: skip
RAW_DEAD = {
    "id": 7,
    "subscription": "orders",
    "channel": "orders.eu",
    "reason": "max_deliver",
    "attempts": 5,
    "last_error": "boom",
    "created_at": AT,
    "journey": [RAW_DEATH],
    "message": message(3),
    "published": {"channel": "dead", "id": 9, "seq": 1},
}


def test_a_subscription_is_made_with_what_is_said(face: Face) -> None:
    answers = Answers(RAW_SUBSCRIPTION, status=201)
    face.connect(handler=answers)
    made = face.call(
        "subscriptions.create",
        "orders",
        ["orders.*"],
        start=NOON,
        ack_wait=7.5,
        max_deliver=0,
        backoff=(1, 2),
        ordering="none",
        message_ttl=None,
        filter=Filter(types=["a"], keys="k"),
        dead_letter=DeadLetterRoute("dead.{subscription}"),
        push=Push("https://example.com/hook", "whsec_x"),
    )
    assert made == SUBSCRIPTION
    assert answers.asked() == (
        "PUT",
        "/v1/subscriptions/orders",
        {
            "channels": ["orders.*"],
            "start": AT,
            "ack_wait": 7.5,
            "max_deliver": 0,
            "backoff": [1, 2],
            "ordering": "none",
            "filter": {"types": ["a"], "keys": ["k"]},
            "dead_letter": {"channel": "dead.{subscription}"},
            "push": {"url": "https://example.com/hook", "secret": "whsec_x"},
        },
    )


@pytest.mark.parametrize(
    ("start", "sent"), [("earliest", "earliest"), (0, 0), (1042, 1042), ("10m", "10m"), (NOON, AT)]
)
def test_a_place_to_begin_is_an_end_an_id_or_a_time(face: Face, start: Any, sent: Any) -> None:
    answers = Answers(RAW_SUBSCRIPTION)
    face.connect(handler=answers)
    face.call("subscriptions.create", "orders", "orders.eu", start=start)
    assert answers.asked()[2] == {"channels": ["orders.eu"], "start": sent}
    face.call("subscriptions.seek", "orders", start)
    assert answers.asked() == ("POST", "/v1/subscriptions/orders/seek", {"to": sent})
    face.call("subscriptions.seek", "orders", start, dry_run=True)
    assert answers.asked() == ("POST", "/v1/subscriptions/orders/seek?dry_run=true", {"to": sent})


def test_a_time_without_a_zone_is_refused_before_anything_is_sent(face: Face) -> None:
    face.connect(handler=Answers(RAW_SUBSCRIPTION))
    naive = datetime(2026, 11, 20)
    calls: list[Callable[[], Any]] = [
        lambda: face.call("subscriptions.seek", "orders", naive),
        lambda: face.call("subscriptions.create", "orders", ["a"], start=naive),
        lambda: face.call("publish", "a", 1, deliver_at=naive),
        lambda: face.call("dead_letters.purge", naive),
    ]
    for call in calls:
        with pytest.raises(ValueError):
            call()


def test_everything_a_subscription_says_is_read(face: Face) -> None:
    told = RAW_SUBSCRIPTION | {
        "start": 17,
        "message_ttl": 60,
        "max_backlog": 1000,
        "filter": {"keys": ["k"]},
        "dead_letter": {"channel": None},
        "push": {"url": "https://example.com/hook"},
        "paused": True,
        "stats": RAW_STATS,
        "later_member": 1,
    }
    answers = Answers(told)
    face.connect(handler=answers)
    read = face.call("subscriptions.get", "orders")
    assert (read.start, read.message_ttl, read.max_backlog, read.paused) == (17, 60, 1000, True)
    assert (read.filter, read.dead_letter) == (Filter((), ("k",)), DeadLetterRoute(None))
    assert read.push == Push("https://example.com/hook")
    assert read.stats == Stats(5, 2, 1, 2, 1, 40, 3, 4, 6, 7, 1042, 1.5)
    assert answers.asked() == ("GET", "/v1/subscriptions/orders", None)


def test_a_change_of_what_was_read_names_its_tag(face: Face) -> None:
    tag = '"abc"'
    asked: list[tuple[str, str, str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append((request.method, request.url.raw_path.decode(), request.headers.get("if-match")))
        if request.method == "DELETE":
            return httpx.Response(204)
        if len(asked) == 7:
            problem = {"code": "precondition_failed", "detail": "it is another by now", "retryable": False}
            return httpx.Response(412, json=problem)
        return httpx.Response(
            200, json=RAW_SUBSCRIPTION | {"retain": True, "expires": 60}, headers={"ETag": tag}
        )

    face.connect(handler=answer)
    read = face.call("subscriptions.get", "orders")
    assert (read.etag, read.retain, read.expires) == (tag, True, 60)
    face.call("subscriptions.update", "orders", retain=False, expires=None, if_match=read.etag)
    face.call("subscriptions.bind", "orders", ["x"], if_match=read.etag)
    face.call("subscriptions.unbind", "orders", ["x"], if_match=read.etag)
    assert face.call("subscriptions.create", "orders", ["x"], if_match=read.etag).etag == tag
    face.call("subscriptions.delete", "orders", if_empty=True, if_unused=True, if_match=read.etag)
    with pytest.raises(PreconditionFailed):
        face.call("subscriptions.update", "orders", ack_wait=5, if_match=read.etag)
    where = "/v1/subscriptions/orders"
    assert asked == [
        ("GET", where, None),
        ("PATCH", where, tag),
        ("POST", f"{where}/bind", tag),
        ("POST", f"{where}/unbind", tag),
        ("PUT", where, tag),
        ("DELETE", f"{where}?if_empty=true&if_unused=true", tag),
        ("PATCH", where, tag),
    ]


def test_a_purge_and_a_length(face: Face) -> None:
    answers = Answers({"lag": 3, "in_flight": 1, "exact": False}, {"purged": 3}, {"purged": "3"})
    face.connect(handler=answers)
    assert face.call("subscriptions.length", "orders") == Length(3, 1, False)
    assert answers.asked() == ("GET", "/v1/subscriptions/orders/length", None)
    assert face.call("subscriptions.purge", "orders") == 3
    assert answers.asked() == ("POST", "/v1/subscriptions/orders/purge", None)
    with pytest.raises(ProtocolError):
        face.call("subscriptions.purge", "orders")


def test_a_secret_is_in_no_representation() -> None:
    assert "whsec_x" not in repr(Push("https://example.com/hook", "whsec_x"))


@pytest.mark.parametrize(
    ("options", "body"),
    [
        ({}, {}),
        ({"ack_wait": None, "filter": None}, {"ack_wait": None, "filter": None}),
        ({"channels": ["a", "b"], "max_backlog": 3}, {"channels": ["a", "b"], "max_backlog": 3}),
        ({"dead_letter": DeadLetterRoute(None)}, {"dead_letter": {"channel": None}}),
        (
            {"dead_letter": DeadLetterRoute("dead", keep=False)},
            {"dead_letter": {"channel": "dead", "keep": False}},
        ),
        ({"push": Push("https://example.com/hook")}, {"push": {"url": "https://example.com/hook"}}),
    ],
)
def test_a_change_names_only_what_changes_and_none_takes_away(
    face: Face, options: dict[str, Any], body: Any
) -> None:
    answers = Answers(RAW_SUBSCRIPTION)
    face.connect(handler=answers)
    assert face.call("subscriptions.update", "orders", **options) == SUBSCRIPTION
    assert answers.asked() == ("PATCH", "/v1/subscriptions/orders", body)


@pytest.mark.parametrize("method", ["subscriptions.create", "subscriptions.update"])
def test_a_setting_that_is_none_is_refused_here(face: Face, method: str) -> None:
    face.connect(handler=Answers(RAW_SUBSCRIPTION))
    with pytest.raises(TypeError):
        face.call(method, "orders", channels=["a"], ack_weight=3)


@pytest.mark.parametrize("method", ["subscribe", "history", "iter_history", "consume", "publish", "work"])
def test_an_option_that_is_none_is_told_of_the_method_that_was_called(face: Face, method: str) -> None:
    face.connect(handler=Answers())
    calling = face.call if method in ("publish", "work") else face.open
    with pytest.raises(
        TypeError, match=rf"^{method}\(\) got an unexpected keyword argument 'begin': its opt"
    ):
        calling(method, "a", *(["b"] if calling == face.call else []), begin="earliest")


def test_another_definition_under_the_name_is_a_conflict(face: Face) -> None:
    face.connect(handler=Answers(problem(409, "conflict"), status=409))
    with pytest.raises(Conflict):
        face.call("subscriptions.create", "orders", ["a"])


def test_subscriptions_are_listed_over_all_pages(face: Face) -> None:
    answers = Answers(
        {"subscriptions": [RAW_SUBSCRIPTION] * 2, "has_more": True, "cursor": "orders"},
        {"subscriptions": [RAW_SUBSCRIPTION], "has_more": False, "cursor": "orders"},
    )
    face.connect(handler=answers)
    assert face.listing("subscriptions.list", "orders*", page_size=2) == [SUBSCRIPTION] * 3
    asked = [dict(request.url.params) for request in answers.requests]
    assert asked == [
        {"pattern": "orders*", "limit": "2"},
        {"pattern": "orders*", "limit": "2", "cursor": "orders"},
    ]


@pytest.mark.parametrize(
    ("method", "arguments", "verb", "path"),
    [
        ("subscriptions.delete", ("a.b",), "DELETE", "/v1/subscriptions/a.b"),
        ("dead_letters.delete", (7,), "DELETE", "/v1/dead-letters/7"),
        ("policies.delete", ("all",), "DELETE", "/v1/policies/all"),
        ("scheduled.cancel", ("77",), "DELETE", "/v1/scheduled/77"),
    ],
)
def test_what_is_removed_is_not_removed_twice(
    face: Face, method: str, arguments: tuple[Any, ...], verb: str, path: str
) -> None:
    answers = Answers(None, httpx.ReadTimeout(""))
    face.connect(handler=answers)
    assert face.call(method, *arguments) is None
    assert answers.asked() == (verb, path, None)
    with pytest.raises(Unreachable):
        face.call(method, *arguments)
    assert len(answers.requests) == 2


@pytest.mark.parametrize(("method", "verb"), [("pause", "pause"), ("resume", "resume")])
def test_pausing_and_going_on_may_be_asked_twice(face: Face, method: str, verb: str) -> None:
    answers = Answers(httpx.ReadTimeout(""), RAW_SUBSCRIPTION)
    face.connect(handler=answers)
    assert face.call(f"subscriptions.{method}", "orders") == SUBSCRIPTION
    assert answers.asked() == ("POST", f"/v1/subscriptions/orders/{verb}", None)


@pytest.mark.parametrize("method", ["bind", "unbind"])
def test_channels_are_bound_and_unbound_by_name(face: Face, method: str) -> None:
    answers = Answers(httpx.ReadTimeout(""), RAW_SUBSCRIPTION)
    face.connect(handler=answers)
    assert face.call(f"subscriptions.{method}", "orders", ["a", "b.*"]) == SUBSCRIPTION
    assert answers.asked() == ("POST", f"/v1/subscriptions/orders/{method}", {"channels": ["a", "b.*"]})


ONCE: list[Callable[[Face], Any]] = [
    lambda face: face.call("subscriptions.seek", "orders", "latest"),
    lambda face: face.call("dead_letters.replay", 7),
    lambda face: face.call("dead_letters.replay_all"),
    lambda face: face.call("dead_letters.purge", "7d"),
    lambda face: face.call("scheduled.promote", 77),
]


@pytest.mark.parametrize("call", ONCE)
def test_what_would_do_something_else_the_second_time_is_tried_once(
    face: Face, call: Callable[[Face], Any]
) -> None:
    answers = Answers(httpx.ReadTimeout(""))
    face.connect(handler=answers)
    with pytest.raises(Unreachable):
        call(face)
    assert len(answers.requests) == 1


def test_dead_letters_are_listed_and_read(face: Face) -> None:
    answers = Answers({"dead_letters": [RAW_DEAD], "has_more": False, "cursor": 7})
    face.connect(handler=answers)
    (read,) = face.listing("dead_letters.list", subscription="orders", reason="max_deliver", channel=None)
    assert dict(answers.requests[0].url.params) == {
        "subscription": "orders", "reason": "max_deliver", "limit": "100",
    }  # fmt: skip
    assert isinstance(read, DeadLetter)
    assert read.journey == (Death("orders", "orders.eu", "max_deliver", 2, NOON, NOON),)
    assert (read.id, read.attempts, read.last_error, read.message.id) == (7, 5, "boom", 3)
    assert read.published == Published(9, "dead", 1, NOON)
    assert read.unroutable is None
    face.connect(handler=Answers(RAW_DEAD))
    assert face.call("dead_letters.get", 7) == read


def test_dead_letters_are_replayed_and_purged(face: Face) -> None:
    answers = Answers(
        {"id": 7, "subscription": "orders", "message_id": 3},
        {"replayed": 2, "skipped": 1},
        {"replayed": 0, "skipped": 0},
    )
    face.connect(handler=answers)
    assert face.call("dead_letters.replay", 7) == Replayed(7, "orders", 3)
    assert answers.asked() == ("POST", "/v1/dead-letters/7/replay", None)
    assert face.call("dead_letters.replay_all", ids=range(2), channel="a") == ReplayCounts(2, 1)
    assert answers.asked() == ("POST", "/v1/dead-letters/replay", {"ids": [0, 1], "channel": "a"})
    assert face.call("dead_letters.replay_all") == ReplayCounts(0, 0)
    assert answers.asked()[2] == {}
    face.connect(handler=(answers := Answers({"replayed": 2, "skipped": 1, "dry_run": True})))
    assert face.call("dead_letters.replay_all", count=5, rate=0.5, dry_run=True) == ReplayCounts(2, 1)
    assert answers.asked() == ("POST", "/v1/dead-letters/replay?dry_run=true", {"max": 5, "rate": 0.5})
    face.connect(handler=(answers := Answers({"purged": 4})))
    assert face.call("dead_letters.purge", 0, subscription="orders") == 4
    assert answers.asked() == ("POST", "/v1/dead-letters/purge", {"older_than": 0, "subscription": "orders"})
    face.call("dead_letters.purge", NOON)
    assert answers.asked()[2] == {"older_than": AT}


def test_an_unknown_way_to_choose_dead_letters_chooses_none(face: Face) -> None:
    """A word misspelt must not mean all of them."""
    face.connect(handler=Answers({"purged": 4}))
    for method, arguments in (("dead_letters.purge", (0,)), ("dead_letters.replay_all", ())):
        with pytest.raises(TypeError):
            face.call(method, *arguments, subscripton="orders")


def test_a_dead_letter_that_is_gone_is_not_found(face: Face) -> None:
    face.connect(handler=Answers(problem(404, "dead_letter_not_found"), status=404))
    with pytest.raises(NotFound) as caught:
        face.call("dead_letters.replay", 7)
    assert caught.value.code == "dead_letter_not_found"


LISTED = ["subscriptions", "dead_letters", "policies", "scheduled"]
READS: list[tuple[str, tuple[Any, ...]]] = [
    ("subscriptions.get", ("a",)),
    ("dead_letters.get", (1,)),
    ("dead_letters.replay", (1,)),
    ("dead_letters.replay_all", ()),
    ("dead_letters.purge", (0,)),
    ("policies.get", ("a",)),
    ("definitions.export", ()),
    ("definitions.import_", ({},)),
    ("scheduled.get", (1,)),
    ("scheduled.promote", (1,)),
    ("pull", ("a",)),
    ("ack", ("a", ["r"])),
    ("transaction", ([("a", 1)],)),
    ("ticket", ()),
]


@pytest.mark.parametrize(("method", "arguments"), READS)
@pytest.mark.parametrize("answer", [[], {}, "x", 7, {"messages": [1]}, {"results": [1]}, {"deliveries": 1}])
def test_an_answer_of_something_else_is_named_as_such(
    face: Face, method: str, arguments: tuple[Any, ...], answer: Any
) -> None:
    face.connect(handler=Answers(answer))
    with pytest.raises(ProtocolError):
        face.call(method, *arguments)


@pytest.mark.parametrize("noun", LISTED)
@pytest.mark.parametrize("answer", [[], {}, dict.fromkeys(LISTED, 1)])
def test_a_list_of_something_else_is_named_as_such(face: Face, noun: str, answer: Any) -> None:
    face.connect(handler=Answers(answer))
    with pytest.raises(ProtocolError):
        face.listing(f"{noun}.list")


def test_a_list_that_goes_round_in_circles_comes_to_an_end(face: Face) -> None:
    page = {"subscriptions": [RAW_SUBSCRIPTION], "has_more": True, "cursor": "orders"}
    face.connect(handler=Answers(page))
    assert len(face.listing("subscriptions.list")) == 2


def test_all_models_are_values() -> None:
    for name in (
        "Subscription",
        "Stats",
        "PulledDelivery",
        "Settled",
        "DeadLetter",
        "Policy",
        "Scheduled",
        "Committed",
        "Ticket",
    ):
        kind = getattr(gapless, name)
        assert kind.__dataclass_params__.frozen
        assert not hasattr(kind, "__dict__") or "__slots__" in vars(kind)
