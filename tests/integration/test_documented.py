"""What the service answers is what its OpenAPI document says; the validator comes with schemathesis."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from jsonschema_rs import Draft202012Validator

from tests.conftest import Serve
from tests.patience import PATIENCE_S, eventually


@pytest.fixture
async def client(serve: Serve) -> AsyncIterator[httpx.Client]:
    with httpx.Client(base_url=serve().url, timeout=PATIENCE_S) as connected:
        await eventually(lambda: connected.get("/readyz").status_code == 200)
        yield connected


class Documented:
    """Sends requests, and holds their answers against the document."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self.called: set[tuple[str, str]] = set()
        self._document = client.get("/openapi.json").json()

    @property
    def answers(self) -> set[tuple[str, str]]:
        """All routes that answer JSON or nothing."""
        return {
            (method.upper(), path)
            for path, operations in self._document["paths"].items()
            for method, operation in operations.items()
            for status, answer in operation["responses"].items()
            if status[0] == "2" and {"application/json"} & set(answer.get("content", ["application/json"]))
        }

    def bodies(self) -> Iterator[tuple[str, str, str, str]]:
        """Each member of each body that is an object: method, path, media type, member."""
        schemas = self._document["components"]["schemas"]
        for path, operations in self._document["paths"].items():
            for method, operation in operations.items():
                for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
                    for schema in content["schema"].get("anyOf", [content["schema"]]):
                        if "$ref" not in schema:
                            continue
                        for name, member in schemas[schema["$ref"].rpartition("/")[2]]["properties"].items():
                            # Any JSON fits those that are read later, or kept.
                            if name not in ("data", "definition"):
                                assert member, (path, name)
                                yield method, path, media_type, name

    def __call__(self, method: str, path: str, status: int = 200, **arguments: Any) -> Any:
        values = arguments.pop("values", {})
        answer = self._client.request(method, path.format(**values), **arguments)
        assert answer.status_code == status, answer.text
        self.called.add((method, path))
        answers = self._document["paths"][path][method.lower()]["responses"]
        content = answers[str(status)].get("content", {})
        if not answer.content:
            assert content == {}
            return None
        schema = {**content["application/json"]["schema"], "components": self._document["components"]}
        Draft202012Validator(schema).validate(answer.json())
        return answer.json()


def look_at_channels(call: Documented, a: dict[str, Any]) -> None:
    call("PUT", "/v1/channels/{channel}", json={"retention": {"max_messages": 9}, "message_ttl": 60}, **a)
    call("PATCH", "/v1/channels/{channel}", json={"message_ttl": None}, **a)
    assert call("GET", "/v1/channels")["channels"][0]["retention"] == {"max_age": 60, "max_messages": 9}
    assert call("GET", "/v1/channels/{channel}/presence", **a)["clients"] == []
    page = call("GET", "/v1/channels/{channel}/messages", **a)
    one_message: dict[str, Any] = {"values": {"channel": "a", "message_id": page["cursor"]}}
    call("GET", "/v1/channels/{channel}/messages/{message_id}", **one_message)
    call("POST", "/v1/messages", 201, json={"messages": [{"channel": "c", "data": 1}]})
    call("POST", "/v1/channels/{channel}/messages", 202, json={"data": 1, "ephemeral": True}, **a)


def change(call: Documented) -> None:
    messages, notes = "/v1/channels/{channel}/messages", {"channel": "notes"}
    first = call("POST", messages, 201, json={"data": 1}, values=notes)["id"]
    for action in ("update", "reply", "delete"):
        call("POST", messages, 201, json={"data": 2, "target": first, "action": action}, values=notes)
    for more in ({"mode": "distinct", "key": "k"}, {"mode": "flag"}, {"mode": "total", "remove": True}):
        liked = {"target": first, "action": "annotate", "annotation": "like", **more}
        call("POST", messages, 201, json=liked, values=notes)
    call("GET", messages, values=notes)
    one = {**notes, "message_id": first}
    for path in ("", "/{message_id}"):
        call("GET", f"{messages}{path}", values=one, params={"view": "latest"})
    for path, count in (("versions", 3), ("replies", 1)):
        assert len(call("GET", f"{messages}/{{message_id}}/{path}", values=one)["messages"]) == count


def mark(call: Documented, a: dict[str, Any]) -> None:
    one: dict[str, Any] = {"values": {**a["values"], "marker": "read"}}
    call("PUT", "/v1/channels/{channel}/markers/{marker}", json={"id": 1, "user": "ann"}, **one)
    call("GET", "/v1/channels/{channel}/markers/{marker}", **one)
    several = [{"channel": a["values"]["channel"], "name": "read", "id": 1, "user": user} for user in "xy"]
    call("POST", "/v1/markers", json={"markers": several})
    assert len(call("GET", "/v1/markers", params={"user": "x"})["markers"]) == 1


def schedule_and_mark(call: Documented, a: dict[str, Any]) -> None:
    mark(call, a)
    later = call("POST", "/v1/channels/{channel}/messages", 202, json={"data": 1, "delay": 3600}, **a)
    scheduled: dict[str, Any] = {"values": {"scheduled_id": later["scheduled_id"]}}
    call("GET", "/v1/scheduled")
    call("GET", "/v1/scheduled/{scheduled_id}", **scheduled)
    call("POST", "/v1/scheduled/{scheduled_id}/promote", **scheduled)

    later = call("POST", "/v1/channels/{channel}/messages", 202, json=[{"data": 1, "delay": 3600}], **a)
    cancelled = {"scheduled_id": later["messages"][0]["scheduled_id"]}
    call("DELETE", "/v1/scheduled/{scheduled_id}", 204, values=cancelled)


OF_OPERATORS = {(method, "/v1/namespaces/{namespace}") for method in ("GET", "PUT", "DELETE")}
"""They are called in tests/integration/test_keys.py."""


def make_keys(call: Documented) -> None:
    """With the first one, every request needs one."""
    for path in ("/healthz", "/readyz", "/v1/whoami"):
        call("GET", path)
    grants = [{"actions": ["admin"], "channels": [">"], "subscriptions": [">"]}]
    call("POST", "/v1/tickets", 201, json={"channels": ["a"]})
    made = call("POST", "/v1/keys", 201, json={"name": "root", "grants": grants})
    headers = {"Authorization": f"Bearer {made['key']}"}
    call("GET", "/v1/keys", headers=headers)
    call("DELETE", "/v1/keys/{key}", 204, values={"key": made["id"]}, headers=headers)


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
    call("POST", "/v1/channels/{channel}/messages", 201, json=[{"data": n} for n in range(5)], **a)
    call("GET", "/v1/channels/{channel}", **a)
    look_at_channels(call, a)
    call("GET", "/v1/subscriptions/{name}", **name)
    pulled = call("POST", "/v1/subscriptions/{name}/pull", json={"max": 5, "wait": 5}, **name)
    one, two, three, four, five = (delivery["receipt"] for delivery in pulled["deliveries"])
    call("POST", "/v1/subscriptions/{name}/ack", json={"receipts": [one, "x"]}, **name)
    call("GET", "/v1/subscriptions/{name}/length", **name)
    assert call("GET", "/v1/subscriptions/{name}/messages", **name)["messages"]
    for verb in ("ack", "nack", "release", "extend"):
        call("POST", f"/v1/{verb}", json={"receipts": ["x"]})
    for verb, receipt in (("extend", two), ("release", "x")):
        call("POST", f"/v1/subscriptions/{{name}}/{verb}", json={"receipts": [receipt]}, **name)
    given_up = {"receipts": [two, three, five], "dead_letter": True, "reason": "no"}
    results = call("POST", "/v1/subscriptions/{name}/nack", json=given_up, **name)["results"]
    first: dict[str, Any] = {"values": {"dead_letter_id": results[0]["dead_letter"]}}
    both = {"publish": [{"channel": "b", "data": 1}], "ack": [{"subscription": "s", "receipts": [four]}]}
    call("POST", "/v1/transactions", 201, json=both)

    entry = call("GET", "/v1/dead-letters/{dead_letter_id}", **first)
    assert entry["published"]["channel"] == "dead"
    assert entry["last_error"] == "no"
    call("GET", "/v1/dead-letters")
    call(
        "DELETE",
        "/v1/dead-letters/{dead_letter_id}",
        204,
        values={"dead_letter_id": results[2]["dead_letter"]},
    )
    call("POST", "/v1/dead-letters/{dead_letter_id}/replay", **first)
    assert call("POST", "/v1/dead-letters/replay", json={})["replayed"] == 1
    call("POST", "/v1/dead-letters/purge", json={"older_than": 0})
    for verb in ("pause", "resume", "purge"):
        call("POST", f"/v1/subscriptions/{{name}}/{verb}", **name)
    with client.stream("POST", "/v1/ws/http_stream", json={"id": 1, "connect": {}}) as stream:
        said = json.loads(next(stream.iter_lines()))["connect"]
        pong = {"session": said["session"], "node": said["node"], "data": "{}"}
        call("POST", "/v1/ws/emulation", 204, json=pong)
    call("POST", "/v1/subscriptions/{name}/seek", json={"to": "earliest"}, **name)

    change(call)
    schedule_and_mark(call, a)
    document = call("GET", "/v1/definitions")
    document["subscriptions"][0]["ack_wait"] = 6
    call("POST", "/v1/definitions", json=document)
    for verb in ("bind", "unbind"):
        call("POST", f"/v1/subscriptions/{{name}}/{verb}", json={"channels": ["d"]}, **name)
    call("DELETE", "/v1/policies/{name}", 204, values={"name": "p"})
    call("DELETE", "/v1/subscriptions/{name}", 204, **name)
    call("DELETE", "/v1/channels/{channel}", 204, **a)
    make_keys(call)
    assert call.answers - call.called == OF_OPERATORS


def test_every_route_refuses_a_parameter_that_it_does_not_have(client: httpx.Client) -> None:
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        target = path.replace("{channel}", "a").replace("{name}", "a").replace("{marker}", "a")
        for method in operations:
            answer = client.request(method, f"{re.sub(r'{.*?}', '1', target)}?no_such=1", json={})
            problem = answer.json()
            assert (answer.status_code, problem["code"]) == (422, "invalid_request"), (method, path, problem)
            assert problem["errors"][0]["field"] == "no_such"


def test_a_body_is_read_as_the_struct_that_is_documented(client: httpx.Client) -> None:
    """Of each member a value that no member takes: what is refused is the value, not the member."""
    for method, path, media_type, member in Documented(client).bodies():
        if path.startswith("/v1/namespaces/"):
            continue  # Only an operator is told.
        target = path.replace("{channel}", "a").replace("{name}", "a").replace("{marker}", "a")
        text = json.dumps({member: [[[]]]})
        answer = client.request(method, target, content=text, headers={"Content-Type": media_type})
        errors = answer.json().get("errors", [{"field": "", "message": ""}])
        assert errors[0]["field"].startswith(member), (method, path, member, answer.text)
        assert "known member" not in errors[0]["message"], (method, path, member)


def test_a_body_of_every_route_may_be_compressed(client: httpx.Client) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    sent = gzip.compress(b'{"retention": {"max_age": 60}}')
    assert client.put("/v1/channels/zipped", content=sent, headers=headers).status_code == 201
    bomb = gzip.compress(bytes(100 * 1024 * 1024))
    refused = client.put("/v1/channels/zipped", content=bomb, headers=headers)
    assert refused.json()["code"] == "payload_too_large"
