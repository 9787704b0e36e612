"""Subscriptions, policies, definitions and scheduled messages over HTTP."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from app.embedded import EmbeddedPostgres
from tests.conftest import Database, External, Serve, service_of_its_own
from tests.patience import PATIENCE_S, eventually

SECRET = "whsec_" + b64encode(b"s" * 32).decode()
DEFAULTS = {
    "ack_wait": 30,
    "max_deliver": 5,
    "backoff": [1, 5, 30],
    "max_in_flight": 1000,
    "ordering": "key",
}
SETTINGS: dict[str, Any] = {
    "ack_wait": 1.5,
    "max_deliver": 0,
    "backoff": [0, 0.5],
    "max_in_flight": 7,
    "ordering": "channel",
    "message_ttl": 60,
    "max_backlog": 9,
    "filter": {"types": ["b", "a"], "keys": ["k"]},
    "dead_letter": {"channel": "dead.{subscription}.{channel}"},
    "push": {"url": "https://example.com/hook", "secret": SECRET},
}


@pytest.fixture(scope="module")
def served(
    postgres: EmbeddedPostgres | External, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Database]]:
    with service_of_its_own(postgres, redis_url, tmp_path_factory.mktemp("service")) as found:
        yield found


@pytest.fixture
async def client(served: tuple[str, Database]) -> AsyncIterator[httpx.Client]:
    """Definitions are about everything in a service, so each test begins with none, and with no messages."""
    url, database = served
    with httpx.Client(base_url=url, timeout=PATIENCE_S) as connected:
        await eventually(lambda: connected.get("/readyz").status_code == 200)
        yield connected
        for kind in ("subscriptions", "policies", "channels"):
            for item in ok(connected.get(f"/v1/{kind}"))[kind]:
                ok(connected.delete(f"/v1/{kind}/{item['name']}"), 204)
    owner = await asyncpg.connect(database.owner_url)
    await owner.execute("truncate gapless.idempotency, gapless.scheduled")
    await owner.close()


def ok(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def put(client: httpx.Client, name: str, status: int = 201, **members: Any) -> Any:
    body = {"channels": ["orders.>"], **members}
    return ok(client.put(f"/v1/subscriptions/{name}", json=body), status)


def policy(client: httpx.Client, name: str, status: int = 201, **members: Any) -> Any:
    body = {"pattern": ">", "applies_to": "subscriptions", **members}
    return ok(client.put(f"/v1/policies/{name}", json=body), status)


def shown(client: httpx.Client, name: str) -> Any:
    return ok(client.get(f"/v1/subscriptions/{name}"))


def test_a_subscription_has_defaults_and_says_so(client: httpx.Client) -> None:
    made = put(client, "s")
    created_at = made.pop("created_at")
    assert made == {
        "name": "s",
        "channels": ["orders.>"],
        "start": "latest",
        **DEFAULTS,
        "paused": False,
        "origins": dict.fromkeys(DEFAULTS, "default"),
    }
    stats = shown(client, "s").pop("stats")
    cursor = stats.pop("cursor")
    assert stats.pop("oldest_unacked_seconds") is None
    assert set(stats.values()) == {0}
    assert cursor >= 0
    assert put(client, "s", 200)["created_at"] == created_at


def test_every_setting_can_be_its_own(client: httpx.Client) -> None:
    made = put(client, "s", **SETTINGS, start="earliest")
    assert SECRET not in str(made)
    assert {name: made[name] for name in SETTINGS} == {
        **SETTINGS,
        "push": {"url": "https://example.com/hook"},
    }
    assert made["origins"] == dict.fromkeys(SETTINGS, "own")
    assert put(client, "s", 200, **SETTINGS, start="earliest") == made
    assert ok(client.get("/v1/subscriptions"))["subscriptions"] == [made]


def test_the_longest_definition_fits(client: httpx.Client) -> None:
    long: dict[str, Any] = {
        "channels": [f"{n:03}." + "c" * 251 for n in range(128)],
        "filter": {
            "types": [f"{n:03}" + "\U0001f600" * 125 for n in range(128)],
            "keys": [f"{n:03}" + "\U0001f600" * 252 for n in range(128)],
        },
        "backoff": [n + 0.123456789 for n in range(32)],
        "dead_letter": {"channel": "d" * 255},
    }
    made = put(client, "s" * 255, **long)
    assert {name: made[name] for name in long} == long
    assert put(client, "s" * 255, 200, **long) == made


def test_another_definition_of_one_name_is_a_conflict(client: httpx.Client) -> None:
    put(client, "s", ack_wait=5)
    for differing in ({}, {"ack_wait": 6}, {"ack_wait": 5, "max_deliver": 5}, {"ack_wait": 5, "start": 0}):
        refused = put(client, "s", 409, **differing)
        member = next(iter(differing.keys() - {"ack_wait"}), "ack_wait")
        assert (refused["code"], member in refused["detail"]) == ("conflict", True)
    assert put(client, "s", 409, channels=["other"], ack_wait=5)["code"] == "conflict"
    put(client, "s", 200, ack_wait=5.0, backoff=None)


def test_the_order_of_a_set_is_no_other_definition(client: httpx.Client) -> None:
    made = put(client, "s", channels=["b.b", "a.a"], filter={"types": ["x", "y"], "keys": ["k"]})
    assert put(client, "s", 200, channels=["a.a", "b.b"], filter={"types": ["y", "x"], "keys": ["k"]}) == made
    refused = put(client, "s", 409, channels=["a.a", "c.c"], filter={"types": ["x"]})
    assert refused["detail"] == "subscription s exists and differs in channels, filter; PATCH changes it"


def test_a_push_retries_as_its_standard_suggests(client: httpx.Client) -> None:
    made = put(client, "s", push=SETTINGS["push"])
    assert made["max_deliver"] == 10
    assert made["backoff"] == [5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400]
    assert made["origins"]["backoff"] == "default"


def test_patch_changes_what_it_names(client: httpx.Client) -> None:
    put(client, "s", ack_wait=5, filter={"types": ["a"]}, dead_letter={"channel": "dead"})
    changed = ok(
        client.patch(
            "/v1/subscriptions/s", json={"ack_wait": None, "max_deliver": 2, "channels": ["b", "c.*"]}
        )
    )
    assert (changed["ack_wait"], changed["origins"]["ack_wait"]) == (30, "default")
    assert (changed["max_deliver"], changed["origins"]["max_deliver"]) == (2, "own")
    assert changed["channels"] == ["b", "c.*"]
    assert changed["filter"] == {"types": ["a"]}
    assert changed["dead_letter"] == {"channel": "dead"}
    cleared = ok(client.patch("/v1/subscriptions/s", json={"filter": None, "dead_letter": None}))
    assert "filter" not in cleared
    assert "dead_letter" not in cleared
    assert ok(client.patch("/v1/subscriptions/s", json={})) == cleared


def test_channels_are_bound_and_unbound(client: httpx.Client) -> None:
    def ask(verb: str, *channels: str, status: int = 200) -> Any:
        return ok(client.post(f"/v1/subscriptions/s/{verb}", json={"channels": channels}), status)

    put(client, "s", ack_wait=5)
    bound = ask("bind", "b", "c.*", "b", "orders.>")
    assert bound["channels"] == ["orders.>", "b", "c.*"]
    assert (bound["ack_wait"], bound["stats"]["lag"]) == (5, 0)
    assert ask("bind", "b", "c.*")["channels"] == bound["channels"]
    for channel in ("b", "c.d", "orders.eu", "c.d.e"):
        ok(client.post(f"/v1/channels/{channel}/messages", json={"data": 1}), 201)
    assert shown(client, "s")["stats"]["lag"] == 3
    assert ask("unbind", "c.*", "nowhere", "orders.>")["channels"] == ["b"]
    for refused in (("b",), ("b", "x")):
        assert ask("unbind", *refused, status=422)["errors"][0]["field"] == "channels"
    ask("bind", *(f"n.{n}" for n in range(127)))
    assert ask("bind", "one.more", status=422)["errors"][0]["field"] == "channels"
    assert len(shown(client, "s")["channels"]) == 128


def test_subscriptions_are_listed_by_name_and_page(client: httpx.Client) -> None:
    for name in ("b.2", "a.1", "b.1", "B.0"):
        put(client, name)
    first = ok(client.get("/v1/subscriptions", params={"limit": 3}))
    assert [s["name"] for s in first["subscriptions"]] == ["B.0", "a.1", "b.1"]
    assert (first["has_more"], first["cursor"]) == (True, "b.1")
    rest = ok(client.get("/v1/subscriptions", params={"limit": 3, "cursor": "b.1"}))
    assert [s["name"] for s in rest["subscriptions"]] == ["b.2"]
    assert (rest["has_more"], rest["cursor"]) == (False, None)
    matching = ok(client.get("/v1/subscriptions", params={"pattern": "b.*"}))
    assert [s["name"] for s in matching["subscriptions"]] == ["b.1", "b.2"]
    assert all("stats" not in s for s in matching["subscriptions"])


def test_pause_resume_seek_and_delete(client: httpx.Client) -> None:
    ok(client.post("/v1/channels/orders.eu/messages", json=[{"data": n} for n in range(5)]), 201)
    put(client, "s")
    for _ in range(2):
        assert ok(client.post("/v1/subscriptions/s/pause"))["paused"] is True
    assert shown(client, "s")["paused"] is True
    for _ in range(2):
        assert ok(client.post("/v1/subscriptions/s/resume"))["paused"] is False
    assert shown(client, "s")["stats"]["lag"] == 0
    seek = "/v1/subscriptions/s/seek"
    for to, lag in (("earliest", 5), ("latest", 0), ("1h", 5), (0, 5)):
        stood = shown(client, "s")
        tried = ok(client.post(seek, params={"dry_run": "true"}, json={"to": to}))
        before, after = tried.pop("before"), shown(client, "s")["stats"]
        assert stood["stats"]["cursor"] <= before["cursor"] <= after["cursor"], "it may move by itself"
        moving = {"oldest_unacked_seconds": None, "cursor": None}
        assert {**before, **moving} == {**stood["stats"], **moving} == {**after, **moving}
        assert (tried.pop("dry_run"), tried["stats"]["lag"], tried.keys()) == (True, lag, stood.keys())
        assert ok(client.post(seek, params={"dry_run": "perhaps"}, json={"to": to}), 422)
        assert ok(client.post(seek, json={"to": to}))["name"] == "s"
        assert shown(client, "s")["stats"]["lag"] == lag
    assert client.delete("/v1/subscriptions/s").status_code == 204
    assert ok(client.get("/v1/subscriptions/s"), 404)["code"] == "subscription_not_found"
    assert ok(client.delete("/v1/subscriptions/s"), 404)["code"] == "subscription_not_found"
    put(client, "s", start=0)
    assert shown(client, "s")["start"] == 0


def test_policies_are_made_replaced_listed_and_deleted(client: httpx.Client) -> None:
    definition = {"ack_wait": 5.0, "dead_letter": {"channel": None}}
    made = policy(client, "p", definition=definition)
    assert made == {
        "name": "p",
        "pattern": ">",
        "applies_to": "subscriptions",
        "priority": 0,
        "definition": definition,
    }
    replaced = policy(client, "p", 200, priority=-3, definition={"max_deliver": 2})
    assert ok(client.get("/v1/policies/p")) == replaced
    other = policy(client, "a", applies_to="channels", definition={"retention": {"max_age": 60}})
    assert ok(client.get("/v1/policies")) == {"policies": [other, replaced]}
    assert client.delete("/v1/policies/p").status_code == 204
    assert ok(client.get("/v1/policies/p"), 404)["code"] == "not_found"
    assert ok(client.delete("/v1/policies/p"), 404)["code"] == "not_found"


def test_each_setting_comes_from_the_policy_that_wins_it(client: httpx.Client) -> None:
    put(client, "orders.eu", max_deliver=9)
    policy(
        client, "low", pattern="orders.*", definition={"ack_wait": 1, "max_deliver": 1, "max_in_flight": 1}
    )
    policy(client, "high", pattern="orders.>", priority=5, definition={"ack_wait": 2})
    policy(client, "alike", pattern=">", definition={"max_in_flight": 2, "max_backlog": 3})
    policy(client, "elsewhere", pattern="*", priority=9, definition={"ack_wait": 3})
    policy(client, "channels", applies_to="channels", priority=9, definition={"message_ttl": 4})
    found = shown(client, "orders.eu")
    assert {name: found[name] for name in ("ack_wait", "max_deliver", "max_in_flight", "max_backlog")} == {
        "ack_wait": 2,
        "max_deliver": 9,
        "max_in_flight": 2,
        "max_backlog": 3,
    }
    assert found["origins"] == {
        "ack_wait": "policy:high",
        "max_deliver": "own",
        "max_in_flight": "policy:alike",
        "max_backlog": "policy:alike",
        "backoff": "default",
        "ordering": "default",
    }
    assert "message_ttl" not in found
    client.delete("/v1/policies/high")
    policy(client, "alike", 200, pattern="none", definition={"max_backlog": 3})
    found = shown(client, "orders.eu")
    assert (found["ack_wait"], found["origins"]["ack_wait"]) == (1, "policy:low")
    assert (found["max_in_flight"], "max_backlog" in found) == (1, False)
    made_later = put(client, "orders.us")
    assert made_later["origins"]["ack_wait"] == "policy:low"


def test_an_own_dead_letter_of_none_beats_a_policy(client: httpx.Client) -> None:
    policy(client, "p", definition={"dead_letter": {"channel": "dead"}})
    put(client, "own", dead_letter={"channel": None})
    put(client, "given")
    assert shown(client, "own")["dead_letter"] == {"channel": None}
    assert shown(client, "own")["origins"]["dead_letter"] == "own"
    assert shown(client, "given")["dead_letter"] == {"channel": "dead"}


@pytest.mark.parametrize("by_policy", [False, True])
@pytest.mark.parametrize("keep", [False, 3600, 0.5])
def test_how_long_dead_letters_stay_is_told(client: httpx.Client, keep: float, by_policy: bool) -> None:
    """The default is not."""
    route = {"channel": "dead", "keep": keep}
    if by_policy:
        policy(client, "p", definition={"dead_letter": route})
        put(client, "s")
    else:
        put(client, "s", dead_letter=route)
        put(client, "s", 200, dead_letter=route)
    assert shown(client, "s")["dead_letter"] == route
    kept = ok(client.patch("/v1/subscriptions/s", json={"dead_letter": {"channel": "dead", "keep": True}}))
    assert kept["dead_letter"] == {"channel": "dead"}
    put(client, "s", 200, dead_letter={"channel": "dead"})


def test_channels_say_where_their_settings_come_from(client: httpx.Client) -> None:
    ok(client.put("/v1/channels/a.own", json={"retention": {"max_age": 60}}), 201)
    ok(client.post("/v1/channels/a.plain/messages", json={"data": 1}), 201)
    assert "origins" not in ok(client.get("/v1/channels/a.plain"))
    policy(
        client,
        "p",
        pattern="a.*",
        applies_to="channels",
        definition={"retention": {"max_age": 5, "max_messages": 100}, "message_ttl": 1.5},
    )
    own, plain = (ok(client.get(f"/v1/channels/{name}")) for name in ("a.own", "a.plain"))
    assert (own["retention"], own["message_ttl"]) == ({"max_age": 60, "max_messages": 100}, 1.5)
    assert own["origins"] == {"max_age": "own", "max_messages": "policy:p", "message_ttl": "policy:p"}
    assert plain["retention"] == {"max_age": 5, "max_messages": 100}
    assert plain["origins"] == dict.fromkeys(("max_age", "max_messages", "message_ttl"), "policy:p")
    ok(client.post("/v1/channels/a.later/messages", json={"data": 1}), 201)
    assert ok(client.get("/v1/channels/a.later"))["origins"] == plain["origins"]
    cleared = ok(client.patch("/v1/channels/a.own", json={"retention": None}))
    assert cleared["origins"] == plain["origins"]


def define_much(client: httpx.Client) -> None:
    ok(client.put("/v1/channels/orders.eu", json={"retention": {"max_age": 60}, "message_ttl": 5}), 201)
    ok(client.post("/v1/channels/plain/messages", json={"data": 1}), 201)
    put(client, "s", start=1, **SETTINGS)
    put(client, "paused")
    ok(client.post("/v1/subscriptions/paused/pause"))
    policy(client, "p", pattern="orders.*", priority=3, definition={"ack_wait": 2})
    policy(client, "c", applies_to="channels", definition={"retention": {"max_messages": 9}})


def test_definitions_come_out_and_go_in_unchanged(client: httpx.Client) -> None:
    define_much(client)
    document = ok(client.get("/v1/definitions"))
    assert SECRET not in str(document)
    assert document == {
        "version": 1,
        "channels": [{"name": "orders.eu", "retention": {"max_age": 60}, "message_ttl": 5}],
        "subscriptions": [
            {"name": "paused", "channels": ["orders.>"], "start": "latest", "paused": True},
            {
                "name": "s",
                "channels": ["orders.>"],
                "start": 1,
                **SETTINGS,
                "push": {"url": "https://example.com/hook"},
            },
        ],
        "policies": [
            {
                "name": "c",
                "pattern": ">",
                "applies_to": "channels",
                "priority": 0,
                "definition": {"retention": {"max_messages": 9}},
            },
            {
                "name": "p",
                "pattern": "orders.*",
                "applies_to": "subscriptions",
                "priority": 3,
                "definition": {"ack_wait": 2},
            },
        ],
    }
    nothing = {"dry_run": False, "created": [], "updated": [], "unchanged": 5, "diff": []}
    for _ in range(2):
        assert ok(client.post("/v1/definitions", json=document)) == nothing
    assert ok(client.get("/v1/definitions")) == document


def test_an_import_makes_everything_once(client: httpx.Client, serve: Serve) -> None:
    document = {
        "version": 1,
        "channels": [{"name": "orders.eu", "retention": {"max_age": 60}}],
        "subscriptions": [
            {"name": "s", "channels": ["orders.>"], "start": "earliest", "ack_wait": 5, "paused": True},
            {"name": "t", "channels": ["orders.>"], "push": SETTINGS["push"]},
        ],
        "policies": [
            {"name": "p", "pattern": ">", "applies_to": "channels", "definition": {"message_ttl": 5}}
        ],
    }
    made = {"channel:orders.eu", "subscription:s", "subscription:t", "policy:p"}
    told = ok(client.post("/v1/definitions", params={"dry_run": True}, json=document))
    assert (told["dry_run"], set(told["created"]), told["updated"], told["unchanged"]) == (True, made, [], 0)
    assert SECRET not in str(told)
    nothing = {"version": 1, "channels": [], "subscriptions": [], "policies": []}
    assert ok(client.get("/v1/definitions")) == nothing
    done = ok(client.post("/v1/definitions", json=document))
    assert done == {**told, "dry_run": False}
    again = ok(client.post("/v1/definitions", json=document))
    assert (again["created"], again["updated"], again["unchanged"], again["diff"]) == ([], [], 4, [])
    assert ok(client.get("/v1/channels/orders.eu"))["message_ttl"] == 5
    subscription = shown(client, "s")
    assert (subscription["ack_wait"], subscription["paused"], subscription["start"]) == (5, True, "earliest")


def test_a_dry_run_tells_what_would_change(client: httpx.Client) -> None:
    put(client, "s", ack_wait=5, start="earliest")
    before = ok(client.get("/v1/definitions"))
    document = {
        "version": 1,
        "subscriptions": [{"name": "s", "channels": ["orders.>", "other"], "start": "latest", "ack_wait": 6}],
    }
    told = ok(client.post("/v1/definitions?dry_run=true", json=document))
    assert told["updated"] == ["subscription:s"]
    assert told["diff"] == [
        {
            "kind": "subscription",
            "name": "s",
            "from": {"channels": ["orders.>"], "start": "earliest", "ack_wait": 5},
            "to": {"channels": ["orders.>", "other"], "start": "earliest", "ack_wait": 6},
        }
    ]
    assert ok(client.get("/v1/definitions")) == before
    ok(client.post("/v1/definitions", json=document))
    assert shown(client, "s")["channels"] == ["orders.>", "other"]
    assert shown(client, "s")["start"] == "earliest"


def test_a_document_is_taken_as_a_whole(client: httpx.Client) -> None:
    late = {"name": "s", "channels": ["a"], "start": 2**53 - 1}
    document = {"version": 1, "channels": [{"name": "made", "message_ttl": 5}], "subscriptions": [late]}
    assert ok(client.post("/v1/definitions", json=document), 422)["code"] == "invalid_request"
    assert ok(client.get("/v1/channels"))["channels"] == []


def test_scheduled_messages_are_listed_cancelled_and_promoted(client: httpx.Client) -> None:
    ids = []
    for number in range(3):
        body = {"data": {"n": number}, "key": "k", "headers": {"h": "v"}, "ttl": 600, "delay": 3600}
        taken = ok(client.post("/v1/channels/later/messages", json=body), 202)
        assert taken["channel"] == "later"
        ids.append(taken["scheduled_id"])
    assert all(isinstance(number, str) for number in ids)
    page = ok(client.get("/v1/scheduled", params={"limit": 2}))
    assert ([s["scheduled_id"] for s in page["scheduled"]], page["has_more"]) == (ids[:2], True)
    rest = ok(client.get("/v1/scheduled", params={"cursor": page["cursor"], "channel": "later"}))
    assert ([s["scheduled_id"] for s in rest["scheduled"]], rest["has_more"]) == (ids[2:], False)
    assert ok(client.get("/v1/scheduled?channel=other"))["scheduled"] == []
    one = ok(client.get(f"/v1/scheduled/{ids[0]}"))
    assert (one["data"], one["key"], one["headers"], one["ttl"]) == ({"n": 0}, "k", {"h": "v"}, 600)

    assert client.delete(f"/v1/scheduled/{ids[0]}").status_code == 204
    promoted = ok(client.post(f"/v1/scheduled/{ids[1]}/promote"))
    assert (promoted["channel"], promoted["seq"]) == ("later", 1)
    for number in ids[:2]:
        for gone in (client.get(f"/v1/scheduled/{number}"), client.delete(f"/v1/scheduled/{number}")):
            refused = ok(gone, 404)
            assert refused["code"] == "message_not_found"
            assert refused["detail"] == f"scheduled message not found: {number}"
    (stored,) = ok(client.get("/v1/channels/later/messages"))["messages"]
    assert (stored["id"], stored["data"], stored["headers"]) == (promoted["id"], {"n": 1}, {"h": "v"})
    assert stored["expires_at"] > stored["created_at"]


@pytest.mark.parametrize("asked", [{"delay": 0}, {"deliver_at": "2020-01-01T00:00:00Z"}])
@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}])
async def test_what_is_due_is_answered_the_same_and_published_at_once(
    client: httpx.Client, asked: dict[str, Any], headers: dict[str, str]
) -> None:
    body = {"data": 1, **asked}
    first = client.post("/v1/channels/now/messages", json=body, headers=headers)
    assert set(ok(first, 202)) == {"scheduled_id", "channel", "deliver_at"}
    second = client.post("/v1/channels/now/messages", json=body, headers=headers)
    assert (ok(second, 202) == ok(first, 202)) == bool(headers)
    assert second.headers.get("idempotent-replayed") == ("true" if headers else None)

    last = 1 if headers else 2
    await eventually(lambda: client.get("/v1/channels/now").json().get("last_seq") == last)


@pytest.mark.parametrize("when", ["delay", "deliver_at"])
async def test_a_key_has_one_answer_before_and_after_the_message_is_due(
    client: httpx.Client, when: str
) -> None:
    moment = 0.2 if when == "delay" else (datetime.now(UTC) + timedelta(seconds=0.5)).isoformat()
    body = {"data": 1, when: moment}
    headers = {"Idempotency-Key": "k"}
    first = client.post("/v1/channels/soon/messages", json=body, headers=headers)
    assert "idempotent-replayed" not in first.headers
    await eventually(lambda: client.get("/v1/channels/soon/messages").status_code == 200)
    again = client.post("/v1/channels/soon/messages", json=body, headers=headers)
    assert ok(again, 202) == ok(first, 202)
    assert again.headers["idempotent-replayed"] == "true"
    mismatch = client.post("/v1/channels/soon/messages", json={**body, "data": 2}, headers=headers)
    assert ok(mismatch, 422)["code"] == "idempotency_mismatch"
    assert len(ok(client.get("/v1/channels/soon/messages"))["messages"]) == 1
