"""What definitions make the service do later needs the grants of whoever defines it."""

from __future__ import annotations

from typing import Any

import pytest

from app.api.route import Route
from app.api.settings import dead_letters_of
from app.api.table import ROUTES
from subscriptions.domain.principal import Action, Grant, Principal
from tests.unit.test_grants import ACTIONS, NS, ask, granted

MANAGER = Principal(
    NS,
    "alice",
    (
        Grant(frozenset({Action.MANAGE}), ("in.>",), ("here", "here.>")),
        Grant(frozenset({Action.SUBSCRIBE}), ("in.>",)),
        Grant(frozenset({Action.PUBLISH}), ("dead.>",)),
    ),
)


async def test_a_subscription_may_do_only_what_who_defines_it_may_do() -> None:
    manager = MANAGER
    path = "/v1/subscriptions/{name}"
    put, patch = (next(r for r in ROUTES if (r.method, r.path) == (m, path)) for m in ("PUT", "PATCH"))
    bind = next(r for r in ROUTES if r.path == f"{path}/bind")
    refused: list[tuple[Route, Any]] = [
        (put, {"channels": ["in.a", "out"]}),
        (put, {"channels": [">"]}),
        (put, {"channels": ["in.a"], "dead_letter": {"channel": "out"}}),
        (put, {"channels": ["in.a"], "dead_letter": {"channel": "{channel}.dead"}}),
        (patch, {"channels": ["*"]}),
        (patch, {"dead_letter": {"channel": "dead-{subscription}"}}),
        (bind, {"channels": ["in.a", "in"]}),
    ]

    assert [(await ask(manager, route, "", body)).status_code for route, body in refused] == [403] * len(
        refused
    )
    allowed: list[tuple[Route, Any]] = [
        (put, {"channels": ["in.*"], "dead_letter": {"channel": "dead.{channel}.x"}}),
        (patch, {"channels": ["in.a.b"], "dead_letter": None}),
        (bind, {"channels": ["in.>"]}),
    ]
    # These get as far as the database, which is not there.
    assert [(await ask(manager, route, "", body)).status_code for route, body in allowed] == [500] * 3


@pytest.mark.parametrize(
    ("template", "pattern"),
    [
        ("dead", "dead"),
        ("dead.{subscription}", "dead.q.1"),
        ("dead.{channel}", "dead.>"),
        ("dead.x{channel}.y", "dead.>"),
        ("{channel}", ">"),
        ("{subscription}.{channel}.x", "q.1.>"),
    ],
)
def test_a_template_stands_for_all_channels_that_it_can_give(template: str, pattern: str) -> None:
    assert dead_letters_of(template, "q.1") == pattern


@pytest.mark.parametrize(
    ("template", "pattern"),
    [
        ("dead", "dead"),
        ("dead.{subscription}", "dead.q.>"),
        ("dead.x-{subscription}", "dead.x-q.>"),
        ("dead.{subscription}.x", "dead.q.>"),
        ("{channel}.{subscription}", ">"),
    ],
)
def test_a_template_stands_for_all_channels_that_it_can_give_by_a_policy(template: str, pattern: str) -> None:
    assert dead_letters_of(template, "q.>") == pattern


def test_a_part_of_a_token_has_no_pattern() -> None:
    assert dead_letters_of("dead.x-{subscription}", "*.a") == "dead.>"
    assert dead_letters_of("dead.{subscription}", "*.a") == "dead.*.a"


def _policy(pattern: str, applies_to: str = "subscriptions", **definition: Any) -> dict[str, Any]:
    return {"pattern": pattern, "applies_to": applies_to, "definition": definition or {"max_deliver": 8}}


async def test_a_policy_may_do_only_what_who_defines_it_may_do() -> None:
    put = next(r for r in ROUTES if (r.method, r.path) == ("PUT", "/v1/policies/{name}"))
    refused = [
        _policy(">"),
        _policy("in.>"),
        _policy("here.>", "channels", message_ttl=8),
        _policy("here", dead_letter={"channel": "out.{subscription}"}),
        _policy("here", dead_letter={"channel": "{channel}.dead"}),
    ]
    assert [(await ask(MANAGER, put, "", body)).status_code for body in refused] == [403] * len(refused)
    allowed = [
        _policy("here.*"),
        _policy("in.>", "channels", message_ttl=8),
        _policy("here.>", dead_letter={"channel": "dead.{subscription}"}),
    ]
    # These get as far as the database, which is not there.
    assert [(await ask(MANAGER, put, "", body)).status_code for body in allowed] == [500] * len(allowed)


async def test_definitions_may_do_only_what_who_imports_them_may_do() -> None:
    post = next(r for r in ROUTES if (r.method, r.path) == ("POST", "/v1/definitions"))
    here = {"name": "here", "channels": ["in.a"]}
    refused: list[dict[str, Any]] = [
        {"channels": [{"name": "out"}]},
        {"subscriptions": [here | {"channels": ["in.a", "out"]}]},
        {"subscriptions": [here | {"dead_letter": {"channel": "out"}}]},
        {"subscriptions": [here, here | {"name": "other"}]},
        {"policies": [_policy("in.>") | {"name": "p"}]},
        {"policies": [_policy("here", dead_letter={"channel": "out"}) | {"name": "p"}]},
    ]
    assert [(await ask(MANAGER, post, "", body)).status_code for body in refused] == [403] * len(refused)
    allowed = {
        "channels": [{"name": "in.a"}],
        "subscriptions": [here | {"dead_letter": {"channel": "dead.{channel}"}}],
        "policies": [_policy("here.>") | {"name": "p"}],
    }
    assert (await ask(MANAGER, post, "", allowed)).status_code == 500


async def test_an_export_has_what_is_managed() -> None:
    export = next(r for r in ROUTES if (r.method, r.path) == ("GET", "/v1/definitions"))
    every = next(r for r in ROUTES if (r.method, r.path) == ("GET", "/v1/policies"))
    for who, names in ((MANAGER, ["here"]), (granted(ACTIONS, "elsewhere"), [])):
        exported = (await ask(who, export)).json()["policies"]
        listed = (await ask(who, every)).json()["policies"]
        assert [policy["name"] for policy in exported] == [policy["name"] for policy in listed] == names
