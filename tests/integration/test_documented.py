"""What the service answers is what its OpenAPI document says; the validator comes with schemathesis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from jsonschema_rs import Draft202012Validator

from tests.conftest import Serve
from tests.support import eventually


@pytest.fixture
async def client(serve: Serve) -> AsyncIterator[httpx.Client]:
    with httpx.Client(base_url=serve().url) as connected:
        await eventually(lambda: connected.get("/readyz").status_code == 200)
        yield connected


class Documented:
    """Sends requests, and holds their answers against the document."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._document = client.get("/openapi.json").json()

    def __call__(self, method: str, path: str, status: int = 200, **arguments: Any) -> Any:
        values = arguments.pop("values", {})
        answer = self._client.request(method, path.format(**values), **arguments)
        assert answer.status_code == status, answer.text
        answers = self._document["paths"][path][method.lower()]["responses"]
        content = answers[str(status)].get("content", {})
        if not answer.content:
            assert content == {}
            return None
        schema = {**content["application/json"]["schema"], "components": self._document["components"]}
        Draft202012Validator(schema).validate(answer.json())
        return answer.json()


def test_answers_are_as_documented(client: httpx.Client) -> None:
    call = Documented(client)
    name: dict[str, Any] = {"values": {"name": "s"}}
    definition = {
        "channels": ["a"],
        "filter": {"types": ["message"]},
        "max_backlog": 5,
        "dead_letter": {"channel": "dead"},
    }
    call("PUT", "/v1/subscriptions/{name}", 201, json=definition, **name)
    call("PUT", "/v1/subscriptions/{name}", 200, json=definition, **name)
    call("PATCH", "/v1/subscriptions/{name}", json={"ack_wait": 5}, **name)
    call("GET", "/v1/subscriptions")
    policy = {"pattern": ">", "applies_to": "channels", "definition": {"retention": {"max_age": 60}}}
    call("PUT", "/v1/policies/{name}", 201, json=policy, values={"name": "p"})
    call("GET", "/v1/policies/{name}", values={"name": "p"})
    call("GET", "/v1/policies")
    a: dict[str, Any] = {"values": {"channel": "a"}}
    call("POST", "/v1/channels/{channel}/messages", 201, json=[{"data": n} for n in range(4)], **a)
    call("GET", "/v1/channels/{channel}", **a)

    call("GET", "/v1/subscriptions/{name}", **name)
    pulled = call("POST", "/v1/subscriptions/{name}/pull", json={"max": 4, "wait": 5}, **name)
    one, two, three, four = (delivery["receipt"] for delivery in pulled["deliveries"])
    call("POST", "/v1/subscriptions/{name}/ack", json={"receipts": [one, "x"]}, **name)
    call("POST", "/v1/subscriptions/{name}/extend", json={"receipts": [two]}, **name)
    given_up = {"receipts": [two, three], "dead_letter": True, "reason": "no"}
    results = call("POST", "/v1/subscriptions/{name}/nack", json=given_up, **name)["results"]
    first: dict[str, Any] = {"values": {"dead_letter_id": results[0]["dead_letter"]}}
    both = {"publish": [{"channel": "b", "data": 1}], "ack": [{"subscription": "s", "receipts": [four]}]}
    call("POST", "/v1/transactions", 201, json=both)

    entry = call("GET", "/v1/dead-letters/{dead_letter_id}", **first)
    assert entry["published"]["channel"] == "dead"
    assert entry["last_error"] == "no"
    call("GET", "/v1/dead-letters")
    call("POST", "/v1/dead-letters/{dead_letter_id}/replay", **first)
    assert call("POST", "/v1/dead-letters/replay", json={})["replayed"] == 1
    call("POST", "/v1/dead-letters/purge", json={"older_than": 0})
    for verb in ("pause", "resume"):
        call("POST", f"/v1/subscriptions/{{name}}/{verb}", **name)
    call("POST", "/v1/subscriptions/{name}/seek", json={"to": "earliest"}, **name)

    later = call("POST", "/v1/channels/{channel}/messages", 202, json={"data": 1, "delay": 3600}, **a)
    scheduled: dict[str, Any] = {"values": {"scheduled_id": later["scheduled_id"]}}
    call("GET", "/v1/scheduled")
    call("GET", "/v1/scheduled/{scheduled_id}", **scheduled)
    call("POST", "/v1/scheduled/{scheduled_id}/promote", **scheduled)

    document = call("GET", "/v1/definitions")
    document["subscriptions"][0]["ack_wait"] = 6
    call("POST", "/v1/definitions", json=document)
    call("DELETE", "/v1/policies/{name}", 204, values={"name": "p"})
    call("DELETE", "/v1/subscriptions/{name}", 204, **name)
