"""Definitions: what is kept of them, which field each refusal is about, and how they are shown."""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any

import pytest

from app.api.definitions import encode_changes, encode_definitions, parse_definitions
from app.api.policies import encode_policy, parse_policy
from app.api.settings import PushRules
from app.api.subscriptions import encode_subscription, parse_patch, parse_seek, parse_subscription
from subscriptions.domain.delivery import (
    AppliesTo,
    Change,
    ChannelDefinition,
    Definition,
    Definitions,
    Policy,
    Stats,
    Subscription,
)
from subscriptions.domain.errors import GaplessError

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
SECRET = "whsec_" + b64encode(b"s" * 24).decode()
PUSH = {"url": "https://example.com/hook?a=b", "secret": SECRET}


def encoded(body: object) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def put(members: object, *, allow_private: bool = False) -> Definition:
    body = {"channels": ["orders.>"], **members} if isinstance(members, dict) else members
    return parse_subscription("s", encoded(body), NOW, PushRules(allow_private))


def patch(members: object) -> tuple[tuple[str, ...] | None, dict[str, Any]]:
    channels, settings = parse_patch("s", encoded(members), PushRules())
    return channels, dict(settings)


def imported(document: object) -> Definitions:
    return parse_definitions(encoded(document), NOW, PushRules())


def refused(call: Any, *arguments: Any) -> tuple[str, str | None]:
    with pytest.raises(GaplessError) as caught:
        call(*arguments)
    errors = caught.value.errors
    return caught.value.code.value, errors[0].field if errors else None


GOOD: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"ack_wait": None, "backoff": None, "filter": None, "dead_letter": None, "push": None}, {}),
    ({"ack_wait": 30.0}, {"ack_wait": 30}),
    ({"ack_wait": 0.5}, {"ack_wait": 0.5}),
    ({"ack_wait": 86_400}, {"ack_wait": 86_400}),
    ({"max_deliver": 0}, {"max_deliver": 0}),
    ({"max_deliver": 1_000_000}, {"max_deliver": 1_000_000}),
    ({"backoff": [0, 1.5, 604_800.0]}, {"backoff": [0, 1.5, 604_800]}),
    ({"backoff": []}, {"backoff": [0]}),
    ({"backoff": [1] * 32}, {"backoff": [1] * 32}),
    ({"max_in_flight": 100_000}, {"max_in_flight": 100_000}),
    ({"ordering": "none"}, {"ordering": "none"}),
    ({"message_ttl": 315_360_000}, {"message_ttl": 315_360_000}),
    ({"max_backlog": 2**53}, {"max_backlog": 2**53}),
    ({"filter": {}}, {"filter": {}}),
    ({"filter": {"types": [], "keys": None}}, {"filter": {}}),
    ({"filter": {"types": ["b", "a", "b"]}}, {"filter": {"types": ["b", "a"]}}),
    ({"filter": {"keys": ["", "k"]}}, {"filter": {"keys": ["", "k"]}}),
    ({"filter": {"types": ["t"] * 128}}, {"filter": {"types": ["t"]}}),
    ({"dead_letter": {"channel": None}}, {"dead_letter": {"channel": None}}),
    ({"dead_letter": {"channel": "dead"}}, {"dead_letter": {"channel": "dead"}}),
    (
        {"dead_letter": {"channel": "dlq.{subscription}.{channel}"}},
        {"dead_letter": {"channel": "dlq.{subscription}.{channel}"}},
    ),
    ({"push": PUSH}, {"push": PUSH}),
]


@pytest.mark.parametrize(("members", "settings"), GOOD, ids=repr)
def test_settings_are_kept_in_one_form(members: dict[str, Any], settings: dict[str, Any]) -> None:
    definition = put(members)
    assert definition == Definition("s", ("orders.>",), "latest", settings)
    # A whole number is shown as one, so its type counts and not only its value.
    assert json.dumps(definition.settings) == json.dumps(settings)


STARTS: list[tuple[object, str]] = [
    (None, "latest"),
    ("latest", "latest"),
    ("earliest", "earliest"),
    (0, "0"),
    (2**53 - 1, str(2**53 - 1)),
    ("0042", "42"),
    ("10m", "2026-11-20T11:50:00.000000Z"),
    ("1d", "2026-11-19T12:00:00.000000Z"),
    ("2026-11-20T13:00:00.5+01:00", "2026-11-20T12:00:00.500000Z"),
    ("2030-01-01t00:00:00z", "2030-01-01T00:00:00.000000Z"),
    ("0001-01-01T00:00:00Z", "1970-01-01T00:00:00.000000Z"),
    ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59.000000Z"),
]


@pytest.mark.parametrize(("given", "start"), STARTS, ids=repr)
def test_where_it_starts(given: object, start: str) -> None:
    assert put({"start": given}).start == start
    if given is not None:
        assert parse_seek(encoded({"to": given}), NOW) == start


def test_channels_keep_their_order_without_repetition() -> None:
    assert put({"channels": ["b", "a.*", "b", ">"]}).channels == ("b", "a.*", ">")
    assert len(put({"channels": [f"c{n}" for n in range(128)]}).channels) == 128


def test_the_name_may_be_repeated() -> None:
    assert put({"name": "s"}) == put({}) == put({"name": None})
    assert refused(put, {"name": "t"}) == ("invalid_request", "name")


BAD_VALUES: dict[str, list[Any]] = {
    "channels": [None, [], "a", 5, ["a"] * 129, {}],
    "start": ["", "soon", "10y", "-5m", -1, 1.5, 2**53, "9" * 17, True, [], "2026-01-01T00:00:00", "9" * 400],
    "ack_wait": [0, -1, 86_400.5, "30", True, [], 1e300],
    "max_deliver": [-1, 1_000_001, 1.5, "5", True],
    "backoff": [5, "1", {}, [1] * 33],
    "max_in_flight": [0, -1, 100_001, 1.5, True],
    "ordering": ["", "Key", "fifo", 5, []],
    "message_ttl": [0, -1, 315_360_001, "5", True],
    "max_backlog": [0, -1, 2**53 + 1, 1.5, "5"],
    "filter": [5, [], "a"],
    "dead_letter": ["dead", [], 5],
    "push": ["https://example.com", [], 5],
}
BAD: list[tuple[Any, str]] = [
    *[({name: value}, name) for name, values in BAD_VALUES.items() for value in values],
    ({"channels": ["a", ""]}, "channels[1]"),
    ({"channels": ["a", "a..b"]}, "channels[1]"),
    ({"channels": ["a.>.b"]}, "channels[0]"),
    ({"channels": ["a", 5]}, "channels[1]"),
    ({"backoff": [1, -1]}, "backoff[1]"),
    ({"backoff": [604_801]}, "backoff[0]"),
    ({"backoff": [1, "5"]}, "backoff[1]"),
    ({"filter": {"types": ["a", ""]}}, "filter.types[1]"),
    ({"filter": {"types": ["a", "b\n"]}}, "filter.types[1]"),
    ({"filter": {"types": ["t" * 129]}}, "filter.types[0]"),
    ({"filter": {"types": ["t"] * 129}}, "filter.types"),
    ({"filter": {"keys": ["k" * 256]}}, "filter.keys[0]"),
    ({"filter": {"keys": [None]}}, "filter.keys[0]"),
    ({"filter": {"channels": ["a"]}}, "filter.channels"),
    ({"dead_letter": {}}, "dead_letter.channel"),
    ({"dead_letter": {"channel": ""}}, "dead_letter.channel"),
    ({"dead_letter": {"channel": "a.*"}}, "dead_letter.channel"),
    ({"dead_letter": {"channel": "a.{key}"}}, "dead_letter.channel"),
    ({"dead_letter": {"channel": "a.{channel"}}, "dead_letter.channel"),
    ({"dead_letter": {"channel": "a..{channel}"}}, "dead_letter.channel"),
    ({"dead_letter": {"channel": "a" * 250 + "{channel}"}}, "dead_letter.channel"),
    ({"dead_letter": {"channel": 5}}, "dead_letter.channel"),
    ({"dead_letter": {"channel": "a", "x": 1}}, "dead_letter.x"),
    ({"push": {"url": "https://example.com"}}, "push.secret"),
    ({"push": {"secret": SECRET}}, "push.url"),
    ({"push": {**PUSH, "headers": {}}}, "push.headers"),
    ({"push": {**PUSH, "secret": None}}, "push.secret"),
    ({"paused": True}, "paused"),
    ({"stats": {}}, "stats"),
    ({"origins": {}}, "origins"),
    (b"[]", "body"),
    (b"null", "body"),
    (b'"x"', "body"),
]


@pytest.mark.parametrize(("members", "field"), BAD, ids=lambda value: repr(value)[:60])
def test_bad_definitions(members: Any, field: str) -> None:
    assert refused(put, members) == ("invalid_request", field)


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"channels":["a"],"channels":["b"]}', b'{"filter":{"keys":[],"keys":[]}}', b"\xff"]
)
def test_bad_texts(body: bytes) -> None:
    for parse in (put, patch, imported, lambda raw: parse_seek(raw, NOW), lambda raw: parse_policy("p", raw)):
        assert refused(parse, body)[0] == "malformed_json"


def test_nul_and_depth() -> None:
    assert refused(put, b'{"channels":["\\u0000"]}')[0] == "invalid_request"
    assert refused(put, b'{"channels":' + b"[" * 100_000 + b"]" * 100_000 + b"}")[0] == "invalid_request"


def test_channels_are_required() -> None:
    assert refused(put, b"{}") == ("invalid_request", "channels")


@pytest.mark.parametrize(
    "url",
    ["", "example.com", "ftp://example.com", "http://u:p@example.com/", "http://127.0.0.1/", "http://[::1]/"],
)
def test_where_nothing_is_pushed_to(url: str) -> None:
    assert refused(put, {"push": {"url": url, "secret": SECRET}}) == ("invalid_request", "push.url")


def test_private_addresses_can_be_allowed() -> None:
    push = {"url": "http://127.0.0.1/", "secret": SECRET}
    assert put({"push": push}, allow_private=True).settings == {"push": push}


@pytest.mark.parametrize("secret", ["", "whsec_", SECRET[6:], SECRET[:-1] + "*", SECRET + "\n", 5])
def test_bad_secrets(secret: object) -> None:
    push = {"url": "https://example.com", "secret": secret}
    assert refused(put, {"push": push}) == ("invalid_request", "push.secret")


def test_patch_names_what_changes() -> None:
    assert patch({}) == (None, {})
    assert patch({"channels": ["a"], "ack_wait": 5.0}) == (("a",), {"ack_wait": 5})
    cleared = {"ack_wait": None, "filter": None, "push": None, "dead_letter": None, "max_backlog": None}
    assert patch(cleared) == (None, cleared)
    assert patch({"dead_letter": {"channel": None}}) == (None, {"dead_letter": {"channel": None}})


@pytest.mark.parametrize(
    ("members", "field"),
    [({"start": "latest"}, "start"), ({"start": None}, "start"), ({"channels": None}, "channels"),
     ({"channels": []}, "channels"), ({"ack_wait": 0}, "ack_wait"), ({"x": 1}, "x"), ({"name": "t"}, "name"),
     ({"push": {"url": "https://example.com", "secret": "x"}}, "push.secret")],
)  # fmt: skip
def test_bad_patches(members: object, field: str) -> None:
    assert refused(patch, members) == ("invalid_request", field)


@pytest.mark.parametrize("body", [{}, {"to": None}, {"to": "soon"}, {"to": -1}, {"to": True}, {"to": []}])
def test_bad_seeks(body: object) -> None:
    assert refused(parse_seek, encoded(body), NOW) == ("invalid_request", "to")


POLICY: dict[str, Any] = {
    "pattern": "orders.>",
    "applies_to": "subscriptions",
    "definition": {"ack_wait": 5.0, "max_backlog": None},
}
CHANNEL_POLICY: dict[str, Any] = {
    "pattern": ">",
    "applies_to": "channels",
    "priority": -5,
    "definition": {"retention": {"max_age": 60, "max_messages": None}, "message_ttl": 5.0},
}


def test_policies() -> None:
    policy = parse_policy("p", encoded(POLICY))
    assert policy == Policy("p", "orders.>", AppliesTo.SUBSCRIPTIONS, 0, {"ack_wait": 5})
    kept = {"max_age": 60, "message_ttl": 5}
    of_channels = parse_policy("p", encoded(CHANNEL_POLICY))
    assert of_channels == Policy("p", ">", AppliesTo.CHANNELS, -5, kept)
    assert json.loads(encode_policy(of_channels)) == {
        "name": "p",
        **CHANNEL_POLICY,
        "definition": {"retention": {"max_age": 60}, "message_ttl": 5},
    }


BAD_POLICIES: list[tuple[dict[str, Any], str]] = [
    ({"pattern": "a..b"}, "pattern"),
    ({"pattern": None}, "pattern"),
    ({"applies_to": "messages"}, "applies_to"),
    ({"applies_to": None}, "applies_to"),
    ({"priority": 1_000_001}, "priority"),
    ({"priority": -1_000_001}, "priority"),
    ({"priority": 1.5}, "priority"),
    ({"definition": {}}, "definition"),
    ({"definition": {"ack_wait": None}}, "definition"),
    ({"definition": None}, "definition"),
    ({"definition": []}, "definition"),
    ({"definition": {"ack_wait": 0}}, "definition.ack_wait"),
    ({"definition": {"filter": {"types": [""]}}}, "definition.filter.types[0]"),
    ({"definition": {"channels": ["a"]}}, "definition.channels"),
    ({"definition": {"start": "latest"}}, "definition.start"),
    ({"definition": {"push": PUSH}}, "definition.push"),
    ({"definition": {"retention": {"max_age": 5}}}, "definition.retention"),
    ({"applies_to": "channels"}, "definition.ack_wait"),
    ({"applies_to": "channels", "definition": {"retention": {}}}, "definition"),
    ({"applies_to": "channels", "definition": {"retention": None}}, "definition"),
    ({"applies_to": "channels", "definition": {"max_age": 5}}, "definition.max_age"),
    ({"name": "q"}, "name"),
    ({"x": 1}, "x"),
]


@pytest.mark.parametrize(("members", "field"), BAD_POLICIES, ids=repr)
def test_bad_policies(members: dict[str, Any], field: str) -> None:
    body = {**POLICY, **members}
    assert refused(parse_policy, "p", encoded(body)) == ("invalid_request", field)
    if field != "name":
        document = {"version": 1, "policies": [{"name": "a", **POLICY}, {"name": "b", **body}]}
        assert refused(imported, document) == ("invalid_request", f"policies[1].{field}")


DOCUMENT: dict[str, Any] = {
    "version": 1,
    "channels": [{"name": "a", "retention": {"max_age": 60}, "message_ttl": 5}, {"name": "b"}],
    "subscriptions": [
        {"name": "s", "channels": ["a"], "start": "earliest", "paused": True},
        {"name": "t", "channels": [">"], "start": 42, "ack_wait": 5, "push": {"url": PUSH["url"]}},
    ],
    "policies": [{"name": "p", **CHANNEL_POLICY, "definition": {"retention": {"max_messages": 9}}}],
}


def test_a_document_comes_back_as_it_was() -> None:
    read = imported(DOCUMENT)
    assert read == Definitions(
        (ChannelDefinition("a", {"max_age": 60, "message_ttl": 5}), ChannelDefinition("b", {})),
        (
            Definition("s", ("a",), "earliest", {}),
            Definition("t", (">",), "42", {"ack_wait": 5, "push": {"url": PUSH["url"]}}),
        ),
        (Policy("p", ">", AppliesTo.CHANNELS, -5, {"max_messages": 9}),),
        frozenset({"s"}),
    )
    assert json.loads(encode_definitions(read)) == DOCUMENT
    assert imported({}) == imported({"version": 1}) == Definitions()
    assert imported({"version": 1, "channels": None, "policies": []}) == Definitions()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"version": 2}, "version"),
        ({"version": None}, "version"),
        ({"x": []}, "x"),
        ({"channels": [{}]}, "channels[0].name"),
        ({"channels": [{"name": "a"}, {"name": "a"}]}, "channels[1].name"),
        ({"channels": [{"name": "a..b"}]}, "channels[0].name"),
        ({"channels": [{"name": "a", "retention": {"max_age": 0}}]}, "channels[0].retention.max_age"),
        ({"subscriptions": [{"name": "s"}]}, "subscriptions[0].channels"),
        ({"subscriptions": [{"name": "s", "channels": ["a", ""]}]}, "subscriptions[0].channels[1]"),
        ({"subscriptions": [{"name": "s", "channels": ["a"], "start": "x"}]}, "subscriptions[0].start"),
        ({"subscriptions": [{"name": "s", "channels": ["a"], "paused": 1}]}, "subscriptions[0].paused"),
        ({"subscriptions": {}}, "subscriptions"),
        ({"policies": [{"name": "p"}]}, "policies[0].pattern"),
    ],
    ids=repr,
)
def test_bad_documents(change: dict[str, Any], field: str) -> None:
    assert refused(imported, {**DOCUMENT, **change}) == ("invalid_request", field)


def test_how_a_subscription_is_shown() -> None:
    stats = Stats(1, 2, 3, 4, 5, 6, 7, 8, 11, 9, None, 10)
    settings = {
        "push": PUSH, "ack_wait": 30.0, "max_deliver": 5, "backoff": [1.0, 2.5], "max_in_flight": 7,
        "message_ttl": None, "max_backlog": None, "ordering": "key", "filter": {"types": ["a"]},
        "dead_letter": {"channel": None},
    }  # fmt: skip
    shown = encode_subscription(
        Subscription(
            1, "default", "s", ("a", "b.>"), "42", True, 0, settings, {"ack_wait": "policy:p"}, stats
        )
    )
    assert SECRET.encode() not in shown
    assert json.loads(shown) == {
        "name": "s", "channels": ["a", "b.>"], "start": 42, "ack_wait": 30, "max_deliver": 5,
        "backoff": [1, 2.5], "max_in_flight": 7, "ordering": "key", "filter": {"types": ["a"]},
        "dead_letter": {"channel": None},
        "push": {"url": PUSH["url"]}, "paused": True, "created_at": "1970-01-01T00:00:00.000000Z",
        "origins": {"ack_wait": "policy:p"},
        "stats": {"lag": 1, "in_flight": 2, "delayed": 3, "waiting": 4, "redelivered": 5, "acked": 6,
                  "dead_lettered": 7, "removed_by_retention": 8, "purged": 11, "dead_letters": 9,
                  "oldest_unacked_seconds": None, "cursor": 10},
    }  # fmt: skip
    assert b'"ack_wait":30,' in shown


def test_how_changes_are_shown() -> None:
    changes = [
        Change("channel", "a", None, {"max_age": 5}),
        Change("subscription", "s", {"channels": ["a"], "start": "7", "push": PUSH}, {"channels": ["b"]}),
        Change("policy", "p", None, {**CHANNEL_POLICY, "definition": {"max_age": 1}}),
    ]
    shown = encode_changes(changes, 3, dry_run=True)
    assert SECRET.encode() not in shown
    assert json.loads(shown) == {
        "dry_run": True,
        "created": ["channel:a", "policy:p"],
        "updated": ["subscription:s"],
        "unchanged": 3,
        "diff": [
            {"kind": "channel", "name": "a", "from": None, "to": {"retention": {"max_age": 5}}},
            {
                "kind": "subscription",
                "name": "s",
                "from": {"channels": ["a"], "start": 7, "push": {"url": PUSH["url"]}},
                "to": {"channels": ["b"]},
            },
            {
                "kind": "policy",
                "name": "p",
                "from": None,
                "to": {**CHANNEL_POLICY, "definition": {"retention": {"max_age": 1}}},
            },
        ],
    }
