"""The OpenAPI document, made of the table of routes: what programs that read it need."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest

from app.api import asyncapi
from app.api.openapi import document
from app.api.route import Route
from app.api.table import ROUTES

DOCUMENT = document()
OPERATIONS = [operation for path in DOCUMENT["paths"].values() for operation in path.values()]


def test_each_row_is_an_operation_with_a_name_of_its_own() -> None:
    names = [operation["operationId"] for operation in OPERATIONS]
    assert len(names) == len(set(names)) == len(ROUTES)
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name)] == []


def test_each_operation_says_what_it_does_in_one_sentence() -> None:
    for operation in OPERATIONS:
        assert 2 <= len(operation["summary"].split()) <= 20, operation["operationId"]
        assert operation["description"].startswith(operation["summary"][:20])


@pytest.mark.parametrize("made", [DOCUMENT, asyncapi.document("")], ids=["openapi", "asyncapi"])
def test_every_reference_leads_somewhere(made: dict[str, Any]) -> None:
    references = set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(made)))
    for reference in references:
        found: Any = made
        for part in reference.split("/"):
            found = found[part]
        assert found


@pytest.mark.parametrize("route", [route for route in ROUTES if route.body], ids=lambda route: route.name)
def test_the_example_of_a_body_is_one(route: Route) -> None:
    assert route.body is not None
    text = msgspec.json.encode(route.body.example)
    assert msgspec.json.decode(text, type=route.body.forms["application/json"])


def test_what_is_sent_is_closed_and_what_is_answered_is_open() -> None:
    """A member that is not known is refused; programs ignore one that a later version answers."""
    schemas = DOCUMENT["components"]["schemas"]
    for operation in OPERATIONS:
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is not None and "$ref" in content["schema"]:
            name = content["schema"]["$ref"].rpartition("/")[2]
            assert schemas[name]["additionalProperties"] is False, name
    for name in (
        "Message",
        "Position",
        "Subscription",
        "Delivery",
        "Results",
        "Problem",
        "Channel",
        "Policy",
    ):
        assert "additionalProperties" not in schemas[name]
