"""What policies, definitions and scheduled messages put on the wire."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from gapless import Change, Imported, NewMessage, Policy, ProtocolError, Published, Scheduled

from tests.client.answers import Answers
from tests.client.faces import Face

AT = "2026-11-20T12:00:00Z"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)

RAW_POLICY = {
    "name": "all",
    "pattern": ">",
    "applies_to": "subscriptions",
    "priority": -3,
    "definition": {"ack_wait": 5},
}
POLICY = Policy("all", ">", "subscriptions", -3, {"ack_wait": 5})
RAW_SCHEDULED = {
    "scheduled_id": "77",
    "channel": "a",
    "deliver_at": AT,
    "type": "message",
    "key": "k",
    "data_base64": "AP8=",
}


def test_policies(face: Face) -> None:
    answers = Answers(RAW_POLICY, {"policies": [RAW_POLICY]}, RAW_POLICY)
    face.connect(handler=answers)
    assert face.call("policies.put", "all", ">", "subscriptions", {"ack_wait": 5}, priority=-3) == POLICY
    assert answers.asked() == (
        "PUT",
        "/v1/policies/all",
        {"pattern": ">", "applies_to": "subscriptions", "priority": -3, "definition": {"ack_wait": 5}},
    )
    assert face.listing("policies.list") == [POLICY]
    assert face.call("policies.get", "all") == POLICY
    assert answers.asked() == ("GET", "/v1/policies/all", None)


def test_definitions_go_out_and_in_as_they_are(face: Face) -> None:
    document = {
        "version": 1,
        "channels": [],
        "subscriptions": [{"name": "a", "channels": ["x"]}],
        "policies": [],
    }
    diff = [{"kind": "subscription", "name": "a", "from": None, "to": {"channels": ["x"]}}]
    report = {"dry_run": True, "created": ["subscription:a"], "updated": [], "unchanged": 2, "diff": diff}
    answers = Answers(document, report)
    face.connect(handler=answers)
    assert face.call("definitions.export") == document
    assert face.call("definitions.import_", document, dry_run=True) == Imported(
        True, ("subscription:a",), (), 2, (Change("subscription", "a", None, {"channels": ["x"]}),)
    )
    assert answers.asked() == ("POST", "/v1/definitions?dry_run=true", document)
    face.call("definitions.import_", document)
    assert answers.asked()[1] == "/v1/definitions?dry_run=false"


@pytest.mark.parametrize(
    ("when", "sent"),
    [
        ({"delay": 60}, {"delay": 60}),
        ({"delay": 0}, {"delay": 0}),
        ({"deliver_at": NOON}, {"deliver_at": AT}),
        ({"deliver_at": AT}, {"deliver_at": AT}),
    ],
)
def test_a_message_for_later(face: Face, when: dict[str, Any], sent: dict[str, Any]) -> None:
    told = {"scheduled_id": "77", "channel": "a", "deliver_at": AT}
    answers = Answers(httpx.ReadTimeout(""), told, status=202)
    face.connect(handler=answers)
    scheduled = face.call("publish", "a", {"n": 1}, key="k", ttl=5, **when)
    assert scheduled == Scheduled("77", "a", NOON)
    assert answers.asked()[2] == {"data": {"n": 1}, "key": "k", "ttl": 5, **sent}
    assert [request.headers["idempotency-key"] for request in answers.requests] == ["key-1", "key-1"]


def test_several_messages_for_later_go_in_one_request(face: Face) -> None:
    told = [{"scheduled_id": str(n), "channel": "a", "deliver_at": AT} for n in range(4)]
    answers = Answers(httpx.ReadTimeout(""), {"messages": told}, {"messages": 1}, status=202)
    face.connect(handler=answers)
    messages = [(60, 1), (0.5, NewMessage({"n": 2}, key="k")), (NOON, b"3"), (AT, 4)]
    scheduled = face.call("schedule_many", "a", messages)
    assert scheduled == [Scheduled(str(n), "a", NOON) for n in range(4)]
    assert answers.asked() == (
        "POST",
        "/v1/channels/a/messages",
        [
            {"data": 1, "delay": 60},
            {"data": {"n": 2}, "key": "k", "delay": 0.5},
            {"data_base64": "Mw==", "deliver_at": AT},
            {"data": 4, "deliver_at": AT},
        ],
    )
    assert [request.headers["idempotency-key"] for request in answers.requests] == ["key-1", "key-1"]
    with pytest.raises(ProtocolError):
        face.call("schedule_many", "a", [(1, 1)], idempotency_key="own")
    assert answers.requests[-1].headers["idempotency-key"] == "own"
    with pytest.raises(ValueError, match="zone"):
        face.call("schedule_many", "a", [(datetime(2026, 1, 1), 1)])


def test_no_time_is_not_for_later(face: Face) -> None:
    stored = {"id": 1, "channel": "a", "seq": 1, "created_at": AT}
    face.connect(handler=Answers(stored, status=201))
    assert face.call("publish", "a", 1, delay=None, deliver_at=None) == Published(1, "a", 1, NOON)


@pytest.mark.parametrize("odd", [{"ephemeral": True}, {"expected_last_seq": 1}, {"nonsense": 1}])
def test_options_that_do_not_go_with_later_are_refused(face: Face, odd: dict[str, Any]) -> None:
    face.connect(handler=Answers({}))
    with pytest.raises(TypeError):
        face.call("publish", "a", 1, delay=5, **odd)


def test_scheduled_messages_are_listed_read_and_promoted(face: Face) -> None:
    expected = Scheduled("77", "a", NOON, "message", "k", b"\0\xff")
    stored = {"id": 1, "channel": "a", "seq": 1, "created_at": AT}
    answers = Answers(
        {"scheduled": [RAW_SCHEDULED], "has_more": False, "cursor": "77"}, RAW_SCHEDULED, stored
    )
    face.connect(handler=answers)
    assert face.listing("scheduled.list", "a", page_size=10) == [expected]
    assert dict(answers.requests[0].url.params) == {"channel": "a", "limit": "10"}
    assert face.call("scheduled.get", 77) == expected
    assert answers.asked() == ("GET", "/v1/scheduled/77", None)
    assert face.call("scheduled.promote", "77") == Published(1, "a", 1, NOON)
    assert answers.asked() == ("POST", "/v1/scheduled/77/promote", None)
